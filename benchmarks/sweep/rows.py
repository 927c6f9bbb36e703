"""One row for each budget and policy over the one session, and two without a budget: one session, one for each task.

Beside the tokens stand the calls that repeat an earlier one, with those whose result the policy had taken out
(`trace/repeats.py`). Pure.

Summaries are invented, so each budget is planned with summaries of several sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import Recording
from acmserve.bench.harness.run_log import counted
from acmserve.bench.sweep.computed import Counts, count_computed
from acmserve.bench.sweep.conversations import SweptTasks
from acmserve.bench.trace.compaction import SUMMARY_TOKENS
from acmserve.bench.trace.prompts import COMPACTION, NO_POLICY, Limits, Prompt, plan_prompts
from acmserve.bench.trace.repeats import add_up
from acmserve.context.transcript.tokenizer import Tokenizer

BUDGETS = (50_000, 80_000, 120_000)
POLICIES = ("cwl", "recency", COMPACTION)
SUMMARY_SIZES = (SUMMARY_TOKENS, 1_000, 2_000)
"""In tokens. The first is that of `bench trace`."""
_MOST_OF_A_BUDGET = 0.2
"""A summary that is to have more of its budget is left out."""
LOW_SHARE = 0.6
"""Of a budget, what a batch of evictions leaves: as in `bench budget`."""


@dataclass(frozen=True, slots=True)
class SweptWay:
    """What is planned: a policy under a budget in tokens, 0 without one, over one session or over one for each task.

    `summary_tokens` are those of a summary, 0 where the policy writes none.
    """

    policy: str = NO_POLICY
    max_tokens: int = 0
    is_alone: bool = False
    summary_tokens: int = 0


def ways_of(budgets: Sequence[int], policies: Sequence[str] = POLICIES) -> list[SweptWay]:
    """All rows, in their order."""
    return [
        *(SweptWay(is_alone=True), SweptWay()),
        *(
            SweptWay(name, most, summary_tokens=size)
            for most in budgets
            for name in policies
            for size in (_summary_sizes(most) if name == COMPACTION else (0,))
        ),
    ]


def _summary_sizes(budget: int) -> tuple[int, ...]:
    """The first always, and the others where they leave room."""
    first, *others = SUMMARY_SIZES
    return (first, *(size for size in others if size <= _MOST_OF_A_BUDGET * budget))


def plan_rows(
    tasks: SweptTasks,
    ways: Sequence[SweptWay],
    writer: PromptWriter,
    tokenizer: Tokenizer,
    say: Callable[[str], object],
) -> Iterator[dict[str, Any]]:
    """JSON-ready rows. Raises AcmError where not even the last step fits into a budget."""
    for number, way in enumerate(ways, start=1):
        budget = f"{way.max_tokens:,} tokens" if way.max_tokens else "no budget"
        size = f" of {way.summary_tokens:,} tokens" if way.summary_tokens else ""
        say(counted(number, len(ways), f"{way.policy}{size}, {budget}{', a session for each task' * way.is_alone}"))
        sessions = tasks.alone if way.is_alone else (tasks.together,)
        yield as_row(way, [_plan(one, way, writer, tokenizer) for one in sessions])


def _plan(recording: Recording, way: SweptWay, writer: PromptWriter, tokenizer: Tokenizer) -> dict[str, Any]:
    """One session's sums. Its prompts, some hundred of 100,000 tokens, are not kept."""
    limits = Limits(way.max_tokens, int(LOW_SHARE * way.max_tokens), way.summary_tokens or SUMMARY_TOKENS)
    return count_session(plan_prompts(recording, way.policy, limits, writer, tokenizer), len(recording.steps))


def count_session(prompts: Sequence[Prompt], num_steps: int) -> dict[str, Any]:
    """Sums over the prompts of one session. A prompt more than there are steps asks for a summary."""
    computed: Counter[str] = Counter()
    for counts in count_computed(prompt.tokens for prompt in prompts):
        computed.update(_named(counts))
    asked = [before for before, after in pairwise(prompts) if after.is_edited] if len(prompts) > num_steps else []
    num_asked = sum(prompt.num_answered for prompt in asked)
    return {
        "num_prompts": len(prompts),
        "num_summaries": len(prompts) - num_steps,
        "num_edits": sum(prompt.is_edited for prompt in prompts),
        "num_forced": sum(prompt.is_forced for prompt in prompts),
        "prompt_tokens": sum(len(prompt.tokens) for prompt in prompts),
        "summary_tokens": num_asked,
        "answer_tokens": sum(prompt.num_answered for prompt in prompts) - num_asked,
        **computed,
        **add_up([prompt.repeats for prompt in prompts]),
        "max_prompt_tokens": max(len(prompt.tokens) for prompt in prompts),
    }


def _named(counts: Counts) -> Counts:
    return {f"{server}_tokens": num for server, num in counts.items()}


def as_row(way: SweptWay, sessions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sums of all sessions of a way, and its longest prompt."""
    sums = {name: sum(one[name] for one in sessions) for name in sessions[0]}
    longest = max(one["max_prompt_tokens"] for one in sessions)
    head: dict[str, Any] = {"policy": way.policy, "max_tokens": way.max_tokens, "num_sessions": len(sessions)}
    head |= {"max_summary_tokens": way.summary_tokens} if way.summary_tokens else {}
    return {**head, **sums, "max_prompt_tokens": longest}


def check_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why the numbers may not be reported. Empty when they may."""
    whole = next(row for row in rows if row["policy"] == NO_POLICY and row["num_sessions"] == 1)
    failures = []
    for row in rows:
        where = f"{row['policy']}, {row['max_tokens']:,} tokens"
        if row["num_sessions"] == 1 and row["answer_tokens"] != whole["answer_tokens"]:
            failures.append(f"{where}: {row['answer_tokens']:,} tokens answered, else {whole['answer_tokens']:,}")
        if row["max_tokens"] and row["max_prompt_tokens"] > row["max_tokens"]:
            failures.append(f"{where}: a prompt has {row['max_prompt_tokens']:,}")
        if row["max_tokens"] >= whole["max_prompt_tokens"]:
            failures.append(f"{where}: without a budget no prompt has more than {whole['max_prompt_tokens']:,}")
        if row["num_sessions"] == 1 and row["num_calls"] != whole["num_calls"]:
            failures.append(f"{where}: {row['num_calls']} calls, without a budget {whole['num_calls']}")
        if row["policy"] == NO_POLICY and (row["num_edits"] or row["num_reexplored"]):
            failures.append(f"{where}: something was taken out where no policy is")
    return failures
