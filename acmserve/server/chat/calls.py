"""The tool calls of one step: whose they are, and carrying out those of the context tools.

    step's calls   [fold f1]  [weather Rome]  [fold f2]  [dance]
                       |            |             |         '-- nobody's tool: a result that says which tools there are
                       |            '-- the client's: goes back to the client
                       '-- the session's: carried out here, in order. The engine sees only what results of all

A wrong call, a model that cannot be reached, and a call too many have results like any other. The result says what to
do instead, and the loop goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.context.session.rollout.record import Initiator
from acmserve.context.storage.session import Session
from acmserve.context.tools.run import ToolCall, parsed_arguments, refused
from acmserve.context.tools.suites import find_suite
from acmserve.errors import InvalidRequest, NotFound, Unavailable
from acmserve.server.chat.branches import NAMES, LoopBranches
from acmserve.server.context.server import ContextServer
from acmserve.server.http.strict_json import clean_json
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.sessions.rollout import operate_rollout

Call = dict[str, Any]
_QUOTES = {("`", "`"), ('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019")}


@dataclass(frozen=True, slots=True)
class Operation:
    """One context tool call carried out. `arguments` are as the model wrote them, parsed where they are JSON.

    What JSON cannot say is cleaned where it is shown. The tool, and the model, read the raw text.
    """

    call_id: str
    tool: str
    arguments: Any
    result: str = ""
    is_error: bool = False
    fragment_ids: tuple[str, ...] = ()
    changed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What the client sees of it."""
        return {
            "tool": clean_json(self.tool),
            "arguments": clean_json(self.arguments),
            "result": clean_json(self.result),
            "is_error": self.is_error,
            "fragment_ids": list(self.fragment_ids),
            "changed": self.changed,
        }

    def message(self) -> dict[str, Any]:
        """The tool message that the model reads."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.result}


def split_calls(calls: Sequence[Call], client_tools: frozenset[str]) -> tuple[list[Call], list[Call]]:
    """The calls that are carried out here, and those of the client."""
    theirs = [call for call in calls if call_name(call) in client_tools]
    return [call for call in calls if call_name(call) not in client_tools], theirs


@dataclass(frozen=True, slots=True)
class ContextTools:
    """Carries out calls for one session. `known` are the names of all tools that the model was offered."""

    server: ContextServer
    session: Session
    options: LoopOptions
    fidelity: str | None
    known: Sequence[str]
    branches: LoopBranches

    async def carry_out(self, call: Call, num_before: int) -> Operation:
        """One call, after `num_before` others of the same answer. Never raises for a wrong call."""
        name, arguments = call_name(call), call["function"].get("arguments")
        made = Operation(str(call.get("id")), name, parsed_arguments(arguments))
        try:
            self._check(name, num_before)
            self.branches.check_other(name)
            if name in NAMES:
                fields = self.branches.call(made.call_id, name, arguments, self.session.state)
                state = operate_rollout(self.session.state, Initiator.MODEL, name, made.arguments)
                self.server.sessions.save(self.session, state)
                return replace(made, result=fields, changed=True)
            suite, may_wait = find_suite(self.options.suites, name), self.options.commit == "cheapest"
            outcome = await self.server.editor.call_tool(
                self.session, ToolCall(name, arguments), suite, self.fidelity, Initiator.MODEL, may_wait=may_wait
            )
        except InvalidRequest as error:
            return replace(made, result=refused(error), is_error=True)
        except Unavailable as error:
            return replace(made, result=f"Error: {error}", is_error=True)
        return replace(
            made,
            result=outcome.result,
            is_error=outcome.error is not None,
            fragment_ids=outcome.fragment_ids,
            changed=outcome.changed,
        )

    def _check(self, name: str, num_before: int) -> None:
        if name not in self.known:
            raise NotFound("name", f"there is no tool {name[:40]!a}.", f"Choose one of {', '.join(self.known)}.")
        most = self.options.max_tool_calls
        if num_before >= most and not self.branches.is_forced:
            raise InvalidRequest(
                "max_tool_calls", f"all {most} context tool calls of this answer are used.", "Answer now."
            )


def find_format_error(said: str, message: Mapping[str, Any], marks: Sequence[str]) -> str | None:
    """What is wrong with the form of a step's tool calls. None where nothing is.

    `said` is the model's own text, which begins a call with one of `marks`. A call that vLLM could not read is in the
    message as text, or not at all.
    """
    calls: Sequence[Call] = message.get("tool_calls") or ()
    for call in calls:
        given = parsed_arguments(call["function"].get("arguments") or "{}")
        if not isinstance(given, Mapping):
            return f"the arguments of {call_name(call)[:40]!a} are not a JSON object"
    reasoning = str(message.get("reasoning") or message.get("reasoning_content") or "")
    answer = said.replace(reasoning, "", 1) if reasoning else said
    mark = next((mark for mark in marks if _begin_of(answer, mark) is not None), None)
    return None if calls or mark is None else f"what follows {mark} could not be read as a tool call"


def text_before(text: str, marks: Sequence[str]) -> str:
    """The part of a text in front of the first tool call."""
    begins = [begin for mark in marks if (begin := _begin_of(text, mark)) is not None]
    return text[: min(begins, default=len(text))]


def text_held_back(said: str, message: Mapping[str, Any], marks: Sequence[str]) -> str:
    """What a stream did not pass on of a step that only speaks of tool calls. Its parser waits for one to the end."""
    sent = str(message.get("content") or "")
    is_held = any(mark in said for mark in marks) and text_before(said, marks) == said
    return said[len(sent) :] if is_held and sent and said.startswith(sent) else ""


def _begin_of(text: str, mark: str) -> int | None:
    """Where a mark begins a call. One that stands in quotes or in backticks is spoken of."""
    begin = text.find(mark)
    while begin >= 0:
        around = text[max(begin - 1, 0) : begin], text[begin + len(mark) : begin + len(mark) + 1]
        if around not in _QUOTES:
            return begin
        begin = text.find(mark, begin + 1)
    return None


def call_name(call: Mapping[str, Any]) -> str:
    """The tool that a call of a step names."""
    return str(call["function"].get("name") or "")
