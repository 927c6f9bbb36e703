"""The six ways in which `bench budget` treats one conversation, and what a good run of each looks like.

The gate of `agent/conversation.py` holds for all of them. Here rules are added. A turn without an eviction brings the
tokens that the trace has there, and `reuse` computes little more than what is new. A summary is read out of the cache,
so compaction stays below a share of what no budget costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.bench.agent.conversation import LOW_WATERMARK, MAX_TOKENS, ConversationRun, check_run
from acmserve.bench.agent.plain_prompt import as_plain
from acmserve.bench.agent.recording import record
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.context.transcript.message import Message

MOST_COMPUTED_PER_NEW = 1.2
MOST_COMPUTED_OF_SUMMARY = 200
"""Tokens computed to read what one summary is made of, its instruction included."""
MOST_MORE_BY_COMPACTION = 0.8
"""Tokens that compaction computes and writes beyond those of no budget, as a share of the latter."""


def make_runs() -> list[ConversationRun]:
    """One run for each way, before any of them has begun."""
    return [
        _run("uncapped", "no budget"),
        _run("recency", "recency, exact", "recency"),
        _run("compaction", "compaction, exact", "compact"),
        _run("cwl-single", "CWL exact, one at a time", "cwl", low_watermark=MAX_TOKENS),
        _run("cwl-batched", "CWL exact, batched", "cwl"),
        _run("cwl-moves", "CWL with moves, batched", "cwl", "reuse"),
    ]


def make_hybrid_runs(suffix: str = "") -> list[ConversationRun]:
    """Runs on a hybrid model. With a suffix: those that are made again as vLLM alone keeps its cache."""
    compared = [
        _run(f"cwl-single{suffix}", "CWL exact, one at a time", "cwl", low_watermark=MAX_TOKENS),
        _run(f"cwl-batched{suffix}", "CWL exact, batched", "cwl"),
    ]
    moves = [
        _run("cwl-moves", "CWL with moves, batched", "cwl", "reuse"),
        _run("cwl-single-moves", "CWL with moves, one at a time", "cwl", "reuse", low_watermark=MAX_TOKENS),
    ]
    return compared if suffix else [_run("uncapped", "no budget"), *compared, *moves]


def check_compaction(runs: Sequence[ConversationRun]) -> list[str]:
    """Why the numbers of compaction may not be reported. Nothing is asked where it or its baseline was not run."""
    by_name = {run.name: run for run in runs}
    if not {"uncapped", "compaction"} <= by_name.keys():
        return []
    compaction, failures = by_name["compaction"], []
    for number, turn in enumerate(compaction.turns):
        if turn.summary[0] > MOST_COMPUTED_OF_SUMMARY:
            computed = f"{turn.summary[0]} tokens computed for a summary"
            failures.append(f"compaction, turn {number}: {computed}, above {MOST_COMPUTED_OF_SUMMARY}")
    more = _spent(compaction) / (_spent(by_name["uncapped"]) or 1) - 1
    if more >= MOST_MORE_BY_COMPACTION:
        failures.append(f"compaction: {more:+.1%} beside no budget, the bound is {MOST_MORE_BY_COMPACTION:+.0%}")
    return failures


def check_pairs(runs: Sequence[ConversationRun], others: Sequence[ConversationRun]) -> list[str]:
    """Why two lists of hybrid runs may not be compared: the second had other prompts, or computed less."""
    failures = []
    by_title = {run.title: run for run in runs}
    for other in others:
        one = by_title[other.title]
        if [turn.prompt for turn in one.turns] != [turn.prompt for turn in other.turns]:
            failures.append(f"{other.name}: its prompts are not those of {one.name}")
        elif sum(turn.computed for turn in one.turns) > sum(turn.computed for turn in other.turns):
            failures.append(f"{one.name}: more is computed than without boundaries")
    return failures


def _run(
    name: str, title: str, policy: str | None = None, fidelity: str = "exact", low_watermark: int = LOW_WATERMARK
) -> ConversationRun:
    budget = {"max_tokens": MAX_TOKENS, "low_watermark": low_watermark, "policy": policy}
    return ConversationRun(name, {"fidelity": fidelity} | ({"budget": budget} if policy else {}), title)


def _spent(run: ConversationRun) -> int:
    return sum(turn.computed + sum(turn.summary) for turn in run.turns)


def new_tokens(trace: Trace, tokenizer: Any, template: str) -> list[int]:
    """Tokens that each turn brings, by the tokenizer and the chat template alone: no engine, no budget.

    `tokenizer` is that of `transformers`.
    """
    recording = record(trace, "new tokens")
    messages: list[Message] = []
    before, new = "", []
    for step in recording.steps:
        messages += [as_plain(message) if message["role"] == "assistant" else message for message in step.new]
        prompt = tokenizer.apply_chat_template(
            messages, tools=list(recording.tools), chat_template=template, add_generation_prompt=True, tokenize=False
        )
        new.append(len(tokenizer.encode(prompt.removeprefix(before), add_special_tokens=False)))
        before = prompt
    return new


def written_by_agent(trace: Trace, tokenizer: Any) -> int:
    """Tokens that the agent of a trace writes: what it says and calls, but for its last answer, which none follows."""
    answers = (as_plain(step.new[0])["content"] for step in record(trace, "answers").steps[1:])
    return sum(len(tokenizer.encode(answer, add_special_tokens=False)) for answer in answers)


def computed_per_new(run: ConversationRun, new: Sequence[int]) -> float | None:
    """Computed over new tokens and markers, summaries included, from the first eviction on. None before one."""
    if not run.evictions:
        return None
    steady = range(run.evictions[0], len(run.turns))
    computed = sum(run.turns[n].computed + sum(run.turns[n].summary) for n in steady)
    return computed / sum(new[n] + run.turns[n].markers for n in steady)


def check_budget_run(
    run: ConversationRun, trace: Trace, new: Sequence[int], most: float | None = MOST_COMPUTED_PER_NEW
) -> list[str]:
    """Why the numbers of a run may not be reported. Empty when they may.

    A run that moves computes at most `most` tokens for each new one. None asks nothing: on a hybrid model a move ends
    where a window or a state is kept.
    """
    failures = check_run(run, trace)
    if len(run.turns) != trace.num_turns:
        return failures
    before = 0
    for number, turn in enumerate(run.turns):
        if not turn.evicted and turn.prompt - before != new[number]:
            brought = turn.prompt - before
            failures.append(f"{run.name}, turn {number}: {brought} new tokens, the trace has {new[number]}")
        before = turn.prompt
    share = computed_per_new(run, new)
    if most is not None and run.acm["fidelity"] == "reuse" and share is not None and share > most:
        failures.append(f"{run.name}: {share:.2f} tokens computed for each new one, above {most}")
    return failures
