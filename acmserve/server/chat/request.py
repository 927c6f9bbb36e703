"""The requests that a tool loop sends to the model, one for each step: the client's request, with the loop's parts.

    client's body   {"messages", "tools": [weather], "tool_choice", "temperature", ...}
    step's body     {"messages": as the session renders them, the preset's prompt in the system message,
                     "tools": [weather, fragment_context, fold_fragment, ...],     the same bytes in every step
                     "tool_choice": "required" or the client's, then "auto", at last "none", "temperature", ...}
                                    or one tool by name, where a branch has to return

Tools and preset stand at the beginning of the prompt, so they never change inside a loop: a changed byte there would
recompute the conversation. The prompt of the preset is not part of the session, whose messages are the client's own.

Pure. It knows JSON bodies, neither the engine nor sessions. vLLM's request objects change the messages that they are
made of, so every body is a deep copy.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.context.tools.suites import PRESETS, suite_tools, tool_names
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest
from acmserve.server.exchange.sampled import SampledAnswers
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.options.preset import with_preset


class LoopRequest:
    """Makes the bodies. `tools` are all that the model is offered, `client_tools` the names of the client's of them.

    Raises InvalidRequest for a client's request that a loop cannot serve.
    """

    def __init__(self, body: Mapping[str, Any], options: LoopOptions) -> None:
        _check_whole_answers(body)
        client_tools: Sequence[Mapping[str, Any]] = body.get("tools") or ()
        context_names = [name for suite in options.suites for name in tool_names(suite)]
        client_names = _client_names(client_tools, context_names, " and ".join(options.suites))
        self.client_tools = frozenset(client_names)
        self.tool_names = (*client_names, *context_names)
        self._body = {name: value for name, value in body.items() if name != "acm"}
        self.tools = [*client_tools, *(tool for suite in options.suites for tool in suite_tools(suite))]
        self.preset = PRESETS[options.preset] if options.preset is not None else ""
        self._options = options
        self.preset_name = options.preset

    def step(
        self, messages: Sequence[Message], number: int, num_calls: int, must_call: str | None = None
    ) -> dict[str, Any]:
        """The body of step `number`, after `num_calls` context tool calls. It has to call the tool `must_call`."""
        own = {
            "messages": with_preset(messages, self._options.preset),
            "tools": self.tools,
            "tool_choice": self._tool_choice(number, num_calls) if must_call is None else _named(must_call),
        }
        return copy.deepcopy(self._body | own)

    def frame(self) -> Mapping[str, Any]:
        """What all steps have in common."""
        return self._body | {"tools": self.tools, "tool_choice": "auto"}

    @property
    def wants_tokens(self) -> bool:
        """Whether the client asks for token ids or log probabilities, by vLLM's fields."""
        return bool(self._body.get("return_token_ids") or self._body.get("logprobs"))

    @property
    def max_tokens(self) -> int:
        """How many tokens a step may sample, 0 where the client does not say."""
        return int(self._body.get("max_completion_tokens") or self._body.get("max_tokens") or 0)

    def tokens_of(self, sampled: SampledAnswers) -> dict[str, Any]:
        """What the client asks for of one step."""
        answer = sampled.answer()
        token_ids_json: dict[str, Any] = {}
        if self._body.get("return_token_ids"):
            token_ids_json = {"prompt_token_ids": list(sampled.prompt), "token_ids": answer.token_ids}
        return token_ids_json | ({"logprobs": answer.logprobs} if self._body.get("logprobs") else {})

    def is_last(self, num_calls: int) -> bool:
        """True when the step has to answer, because no context tool call is left."""
        return num_calls >= self._options.max_tool_calls

    def _tool_choice(self, number: int, num_calls: int) -> Any:
        if self.is_last(num_calls):
            return "none"
        if number > 0:
            return "auto"
        return "required" if self._options.first_call_required else self._body.get("tool_choice") or "auto"


def _named(tool: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool}}


def _check_whole_answers(body: Mapping[str, Any]) -> None:
    """An answer of several steps cannot continue or echo a message, and a grammar for it would forbid tool calls."""
    for name, refused in (("continue_final_message", True), ("echo", True), ("add_generation_prompt", False)):
        if body.get(name) is refused:
            raise InvalidRequest(
                name, f"cannot be {str(refused).lower()} together with acm.tools.", "Leave one of the two out."
            )
    if body.get("n") not in (None, 1, "1"):
        raise InvalidRequest(
            "n", "cannot be above 1 together with acm.tools.", "Send one request per sample, each with its session."
        )
    response_format = body.get("response_format")
    is_free = response_format is None or response_format.get("type") == "text"
    for name, given in (("response_format", not is_free), ("structured_outputs", body.get("structured_outputs"))):
        if given:
            raise InvalidRequest(
                name,
                "forbids the model every tool call of acm.tools, because its grammar holds from the first token.",
                "Let the tools run first, and ask for the format in the next request.",
            )


def _client_names(tools: Sequence[Mapping[str, Any]], context_names: Sequence[str], suite: str) -> list[str]:
    names = []
    for index, tool in enumerate(tools):
        name = str((tool.get("function") or {}).get("name"))
        if name in context_names:
            raise InvalidRequest(
                f"tools[{index}].function.name",
                f"{name!r} is a tool of acm.tools {suite!r}, which the server carries out itself.",
                "Rename your tool, or leave it out.",
            )
        names.append(name)
    return names
