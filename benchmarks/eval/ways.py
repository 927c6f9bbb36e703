"""The ways to treat a context, one line each: the only list. A way plays one sample and gives the answer.

    baseline        the whole context in one message
    reads           the whole context as results of a tool that reads a file in parts
    budget:POLICY   the same, under a budget that is smaller than the context
    tools           context tools with the unified prompt of the Sculptor paper
    tools-guided    the same with the prompt that the paper wrote for the task
    branches        the tools `branch` and `return`
    map             a context map, shared by the questions about one context
    shared          all questions about one context in one conversation, as the PEEK paper's Shared Chat
    rag, memagent   what needs no server of ours: retrieval, and a memory that is rewritten part by part
    rlm, rlm-map    the PEEK paper's agent, which looks at the context by code, and the same with a map
    shell...        an agent in a shell, for the task `terminal`: task by task, in one session, under a budget

Decision: a budget is tried on reads, since what a user said is the last that any policy takes. `reads` is its
baseline. Where a task is a conversation by itself, it stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from acmserve.bench.agent.scripted_agent import function_tool
from acmserve.bench.eval.baselines.memagent import play_memagent
from acmserve.bench.eval.baselines.retrieval import play_retrieval
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.rlm.play import play_rlm, play_rlm_with_map
from acmserve.bench.eval.tasks.registry import find_task
from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN, SHELL, EvalSample
from acmserve.bench.eval.terminal.play import play_isolated, play_session
from acmserve.context.eviction.registry import POLICIES
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest
from acmserve.validation import listing

PART_TOKENS = 1_000
MAX_TOOL_CALLS = 20
BUDGET = "budget:"
ISOLATED = "shell-isolated"
READ = function_tool("read", "Read one part of the text.", part="integer")


@dataclass(frozen=True, slots=True)
class EvalWay:
    """`agent` is that of the samples which it plays. `refusal` says what else it does not play, and why."""

    name: str
    title: str
    needs_acm: bool
    play: Callable[[Play], str]
    refusal: Callable[[EvalSample], str] = lambda sample: ""
    baseline: str = "baseline"
    agent: str = ""

    def refuses(self, sample: EvalSample) -> str:
        """Why a sample is not played in this way, "" where it is."""
        if sample.agent != self.agent:
            return "no task is for an agent in a shell" if self.agent else "the task is for an agent in a shell"
        return self.refusal(sample)


def find_way(name: str) -> EvalWay:
    """The way of this name. Raises `InvalidRequest` with the list."""
    if name not in WAYS:
        raise InvalidRequest("--ways", f"{name!r} is not known.", f"Choose {listing(list(WAYS))}.")
    return WAYS[name]


def as_reads(sample: EvalSample) -> list[Message]:
    """The sample as an agent has it: its context came in parts, as results of calls."""
    if not sample.context:
        return sample.messages()
    size = PART_TOKENS * CHARS_PER_TOKEN
    parts = [sample.context[start : start + size] for start in range(0, len(sample.context), size)]
    messages: list[Message] = [*sample.history, {"role": "user", "content": "Read the whole text. Questions follow."}]
    for number, part in enumerate(parts, start=1):
        call = {"name": "read", "arguments": f'{{"part": {number}}}'}
        calls = [{"id": f"read-{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"read-{number}", "content": part})
    messages.append({"role": "assistant", "content": f"I have read all {len(parts)} parts."})
    return [*messages, {"role": "user", "content": sample.question}]


def _reads(play: Play, acm: Mapping[str, Any] | None = None) -> str:
    fields = {"tools": [READ], "tool_choice": "none"} if play.sample.context else {}
    return play.ask(as_reads(play.sample), acm, **fields)


def _budget(policy: str) -> Callable[[Play], str]:
    acm = {"tools": "cwl", "preset": "cwl"} if policy in ("cwl", "pi-cwl") else {}

    def play(one: Play) -> str:
        return _reads(one, {**acm, "budget": {"max_tokens": one.budget, "policy": policy}})

    return play


def _shell(policy: str) -> EvalWay:
    def play(one: Play) -> str:
        return play_session(one, {"budget": {"max_tokens": one.budget, "policy": policy}})

    return EvalWay(f"shell:{policy}", f"one session, budget, {policy}", True, play, baseline=ISOLATED, agent=SHELL)


def _tools(play: Play, preset: str = "unified") -> str:
    acm = {"tools": "sculptor", "preset": preset, "max_tool_calls": MAX_TOOL_CALLS}
    return play.ask(play.sample.messages(), acm)


def _guided(play: Play) -> str:
    return _tools(play, find_task(play.sample.task).preset)


def _branches(play: Play) -> str:
    acm = {"tools": "branch", "preset": "branch", "max_tool_calls": MAX_TOOL_CALLS}
    return play.ask(play.sample.messages(), acm)


def _map(play: Play) -> str:
    with play.learning():
        return play.ask(play.sample.messages(), {**play.acm_with_map, "query_finished": True})


def _shared(play: Play) -> str:
    first, *rest = [question for question, _ in play.before] + [play.sample.question]
    messages = replace(play.sample, question=first).messages()
    for (_, answer), question in zip(play.before, rest, strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    return play.ask(messages)


def _no_preset(sample: EvalSample) -> str:
    return "" if find_task(sample.task).preset else "the paper has no prompt for this task"


def _no_group(sample: EvalSample) -> str:
    return "" if sample.group else "each context has one question, so there is nothing to share"


def _no_context(sample: EvalSample) -> str:
    return "" if sample.context else "the task is a conversation, and has no text to retrieve from"


def _no_shared(sample: EvalSample) -> str:
    return _no_context(sample) or _no_group(sample)


WAYS: dict[str, EvalWay] = {
    way.name: way
    for way in (
        EvalWay("baseline", "the whole context", False, lambda play: play.ask(play.sample.messages())),
        EvalWay("reads", "the context as tool results", False, _reads),
        EvalWay("tools", "context tools, unified prompt", True, _tools),
        EvalWay("tools-guided", "context tools, the task's prompt", True, _guided, _no_preset),
        *(
            EvalWay(f"{BUDGET}{policy}", f"budget, {policy}", True, _budget(policy), baseline="reads")
            for policy in POLICIES
        ),
        EvalWay("branches", "branches", True, _branches),
        EvalWay("map", "context map", True, _map, _no_group),
        EvalWay("shared", "one conversation for all questions", False, _shared, _no_group),
        EvalWay("rag", "retrieval (BM25)", False, play_retrieval, _no_context),
        EvalWay("memagent", "memory, rewritten part by part", False, play_memagent, _no_context),
        EvalWay("rlm", "the context in a Python session", False, play_rlm, _no_context),
        EvalWay("rlm-map", "the same, with a context map", True, play_rlm_with_map, _no_shared, baseline="rlm"),
        EvalWay(ISOLATED, "a conversation for each task", False, play_isolated, baseline=ISOLATED, agent=SHELL),
        EvalWay("shell", "all tasks in one conversation", False, play_session, baseline=ISOLATED, agent=SHELL),
        *map(_shell, POLICIES),
    )
}
CODE_WAYS = frozenset(name for name, way in WAYS.items() if way.agent or name.startswith("rlm"))
"""Those that run code which a model writes. They are played only where they are named."""
DEFAULT_WAYS = ("baseline", "reads", "tools", "tools-guided", "budget:chain", "budget:recency", "branches", "map")
