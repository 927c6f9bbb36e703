"""The ways to treat a context, one line each: the only list. A way plays one sample and gives the answer.

    baseline        the whole context in one message
    reads           the whole context as results of a tool that reads a file in parts
    budget:POLICY   the same, under a budget that is smaller than the context
    tools           context tools with the unified prompt of the Sculptor paper
    tools-guided    the same with the prompt that the paper wrote for the task
    tools-required  `tools`, and the first step has to call one
    branches        the tools `branch` and `return`
    map             a context map, shared by the questions about one context. `map:NAME` is one of its ablations, and
                    `map:labelled` tells its models the right answers
    shared          all questions about one context in one conversation, as the PEEK paper's Shared Chat
    rag, memagent   what needs no server of ours: retrieval, and a memory that is rewritten part by part
    rlm, rlm-map    the PEEK paper's agent, which looks at the context by code, and the same with a map
    rlm-shared      all questions about one context in one conversation of that agent, as that paper's Shared Chat
    rlm-rag         that agent with passages that BM25 found for the question
    rlm-memagent    that agent with a memory that MemAgent wrote of the text
    shell...        an agent in a shell, for the task `terminal`: task by task, in one session, under a budget

Decision: a budget is tried on reads, since what a user said is the last that any policy takes. `reads` is its
baseline. Where a task is a conversation by itself, it stays one. A share of a budget is one of the reads, on top of the
question and the tools. A policy can take nothing of question and tools, and of a short text they are the larger part.

Decision: `cwl` infers its episodes, and the model gets no tool to mark them. It makes one answer behind all reads, so
nothing that it marks could count.

Decision: with `tools` the model may call none. The Sculptor paper demands a call of models that it did not train, as
`tools-required` does. A small model does not end such a call, and then it has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from acmserve.bench.eval.baselines.memagent import play_memagent
from acmserve.bench.eval.baselines.retrieval import play_retrieval
from acmserve.bench.eval.map_ablations import MAP_ABLATIONS
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.reads import READ, as_reads, with_cleared_reads, without_reads
from acmserve.bench.eval.rlm.play import (
    play_rlm,
    play_rlm_shared,
    play_rlm_with_map,
    play_rlm_with_memory,
    play_rlm_with_passages,
)
from acmserve.bench.eval.tasks.registry import find_task
from acmserve.bench.eval.tasks.task import SHELL, EvalSample
from acmserve.bench.eval.terminal.play import play_isolated, play_session
from acmserve.context.eviction.registry import POLICIES
from acmserve.errors import InvalidRequest
from acmserve.validation import listing

MAX_BRANCHES = 10
"""Those of the Context-Folding paper, for each task."""
BUDGET = "budget:"
ISOLATED = "shell-isolated"
SHARED_AGENT = "rlm-shared"
CLEARING = "clear_tool_uses"
BRANCHES = "branches"
REQUIRED = "tools-required"
BY_TOOLS = frozenset({"tools", "tools-guided", REQUIRED, BRANCHES})
"""The ways in which the model edits by itself. Where it calls no tool there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class EvalWay:
    """`agent` is that of the samples which it plays. `refusal` says what else it does not play, and why.

    `learns`: what is known of a sample comes from those about the same context that were played before. The server has
    it, or the Python session.
    """

    name: str
    title: str
    needs_acm: bool
    play: Callable[[Play], str]
    refusal: Callable[[EvalSample], str] = lambda sample: ""
    baseline: str = "baseline"
    agent: str = ""
    learns: bool = False

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


def _reads(play: Play, acm: Mapping[str, Any] | None = None) -> str:
    return play.ask(as_reads(play.sample), acm, **_read_fields(play.sample))


def _read_fields(sample: EvalSample) -> dict[str, Any]:
    return {"tools": [READ], "tool_choice": "none"} if sample.context else {}


_TO_THE_BUDGET = {"low_watermark": "max_tokens"}
"""A policy takes no more than it has to. One request gains nothing by batches, which would take all of a short text."""


def _budget(policy: str) -> Callable[[Play], str]:
    def play(one: Play) -> str:
        most = _budget_tokens(one, policy)
        return _reads(one, {"budget": {**_TO_THE_BUDGET, "max_tokens": most, "policy": policy}})

    return play


def _budget_tokens(play: Play, policy: str) -> int:
    """The budget in tokens. A share is one of what the policy may take, and comes on top of what has to stay."""
    if play.budget >= 1:
        return int(play.budget)
    stays = with_cleared_reads(play.sample) if policy == CLEARING else without_reads(play.sample)
    fields = _read_fields(play.sample)
    num_least, num_most = (play.count_tokens(one, **fields) for one in (stays, as_reads(play.sample)))
    return num_least + int(play.budget * (num_most - num_least))


def _shell(policy: str) -> EvalWay:
    def play(one: Play) -> str:
        return play_session(one, {"budget": {"max_tokens": one.session_budget, "policy": policy}})

    return EvalWay(f"shell:{policy}", f"one session, budget, {policy}", True, play, baseline=ISOLATED, agent=SHELL)


def _tools(play: Play, preset: str = "unified", **more: bool) -> str:
    return play.ask(play.sample.messages(), {"tools": "sculptor", "preset": preset, **more})


def _guided(play: Play) -> str:
    return _tools(play, find_task(play.sample.task).preset)


def _branches(play: Play) -> str:
    acm = {"tools": "branch", "preset": "branch", "branch": {"max_branches": MAX_BRANCHES}}
    return play.ask(play.sample.messages(), acm)


def _map(play: Play, ablation: str = "", *, is_labelled: bool = False) -> str:
    with play.learning():
        acm = play.acm_with_map(ablation, is_labelled=is_labelled)
        return play.ask(play.sample.messages(), {**acm, "query_finished": True})


def _ablations() -> Iterator[EvalWay]:
    for name, (title, _) in MAP_ABLATIONS.items():
        simple, agent = partial(_map, ablation=name), partial(play_rlm_with_map, ablation=name)
        yield EvalWay(f"map:{name}", f"map, {title}", True, simple, _no_group, learns=True)
        told = f"Python session, map {title}"
        yield EvalWay(f"rlm-map:{name}", told, True, agent, _no_shared, baseline="rlm", learns=True)


def _labelled() -> Iterator[EvalWay]:
    """A map whose models are told the right answer of each question that it learns from. The agent is not."""
    simple, agent = partial(_map, is_labelled=True), partial(play_rlm_with_map, is_labelled=True)
    yield EvalWay("map:labelled", "map, told right answers", True, simple, _no_group, learns=True)
    told = "Python session, map told right answers"
    yield EvalWay("rlm-map:labelled", told, True, agent, _no_shared, baseline="rlm", learns=True)


def _shared(play: Play) -> str:
    first, *rest = [question for question, _ in play.before] + [play.sample.question]
    messages = replace(play.sample, question=first).messages()
    for (_, answer), question in zip(play.before, rest, strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    return play.ask(messages)


def _no_use(policy: str) -> Callable[[EvalSample], str]:
    """What a policy has nothing to take from: it would be played as without one."""

    def refusal(sample: EvalSample) -> str:
        if policy == CLEARING:
            return "" if sample.context else "the task is a conversation, and has no results of tools"
        if policy == "user_messages":
            return "the user asks for reads, and for the answer" if sample.context else ""
        return ""

    return refusal


def _no_preset(sample: EvalSample) -> str:
    return "" if find_task(sample.task).preset else "the paper has no prompt for this task"


def _no_group(sample: EvalSample) -> str:
    return "" if sample.group else "each context has one question, so there is nothing to share"


def _no_context(sample: EvalSample) -> str:
    return "" if sample.context else "the task has no text beside its question, to look at by code"


def _no_shared(sample: EvalSample) -> str:
    return _no_context(sample) or _no_group(sample)


WAYS: dict[str, EvalWay] = {
    way.name: way
    for way in (
        EvalWay("baseline", "the whole context", False, lambda play: play.ask(play.sample.messages())),
        EvalWay("reads", "the context as tool results", False, _reads),
        EvalWay("tools", "context tools, unified prompt", True, _tools),
        EvalWay("tools-guided", "context tools, the task's prompt", True, _guided, _no_preset),
        EvalWay(REQUIRED, "context tools, a call required", True, partial(_tools, first_call_required=True)),
        *(
            EvalWay(f"{BUDGET}{policy}", f"budget, {policy}", True, _budget(policy), _no_use(policy), baseline="reads")
            for policy in POLICIES
        ),
        EvalWay(BRANCHES, "branches", True, _branches),
        EvalWay("map", "context map", True, _map, _no_group, learns=True),
        EvalWay("shared", "one conversation for all questions", False, _shared, _no_group),
        EvalWay("rag", "retrieval (BM25)", False, play_retrieval),
        EvalWay("memagent", "memory, rewritten part by part", False, play_memagent),
        EvalWay("rlm", "the context in a Python session", False, play_rlm, _no_context),
        EvalWay(
            "rlm-map", "that, with a context map", True, play_rlm_with_map, _no_shared, baseline="rlm", learns=True
        ),
        EvalWay(
            SHARED_AGENT, "one Python session for all", False, play_rlm_shared, _no_shared, baseline="rlm", learns=True
        ),
        EvalWay("rlm-rag", "that, with retrieval", False, play_rlm_with_passages, _no_context, baseline="rlm"),
        EvalWay("rlm-memagent", "that, with a memory", False, play_rlm_with_memory, _no_context, baseline="rlm"),
        *_ablations(),
        *_labelled(),
        EvalWay(ISOLATED, "a conversation for each task", False, play_isolated, baseline=ISOLATED, agent=SHELL),
        EvalWay("shell", "all tasks in one conversation", False, play_session, baseline=ISOLATED, agent=SHELL),
        *map(_shell, POLICIES),
    )
}
CODE_WAYS = frozenset(name for name, way in WAYS.items() if way.agent or name.startswith("rlm"))
"""Those that run code which a model writes. They are played only where they are named."""
ABLATIONS = frozenset(way.name for way in _ablations())
"""Those of maps."""
NAMED = ABLATIONS | {way.name for way in _labelled()} | {SHARED_AGENT, REQUIRED}
"""What is played only where it is named, too: maps of another kind, what no small window holds or model ends."""
TAKING_OUT = BY_TOOLS | {name for name in WAYS if name.startswith(BUDGET)}
"""Those of acmserve whose prompts have less of a context than their baseline's. `rag` and its like are the papers'."""
DEFAULT_WAYS = ("baseline", "reads", "tools", "tools-guided", "budget:chain", "budget:recency", "branches", "map")
