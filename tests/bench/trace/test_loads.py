"""The runs of several sessions: how many of their turns edit, and how long they take. Plans only, no engine."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.trace.load import PlannedSession
from acmserve.bench.trace.main import BENCHMARK, _parser, _recordings, _wanted
from acmserve.bench.trace.plan import plan_parts
from acmserve.bench.trace.witness import witnessed
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.models.tokenizer import ServedTokenizer

LEAST_SHARE, MOST_SHARE = 0.30, 0.35
"""Of the turns that edit: a larger share than a third would flatter."""
RUNS = {run.name: _parser().parse_args(run.arguments[1:]) for run in BENCHMARK.runs}
TOKENS_A_SECOND, SESSION_MINUTES = 200, 165


@cache
def planned(name: str, model: Path) -> tuple[PlannedSession, ...]:
    options = RUNS[name]
    options.repetitions = 1
    tokenizer = AutoTokenizer.from_pretrained(model)
    served, writer = ServedTokenizer(tokenizer), PromptWriter(tokenizer, TOOLS_TEMPLATE.read_text(encoding="utf-8"))
    (part,) = plan_parts(_wanted(options), _recordings(options, served), writer, served)
    return part.repetitions[0]


@pytest.mark.parametrize("name", ["trace-4", "trace-4-clear", "trace-16"])
def test_about_a_third_of_the_turns_edit(name: str, smollm2_folder: Path) -> None:
    sessions = planned(name, smollm2_folder)
    edits = [sum(prompt.is_edited for prompt in session.prompts[1:]) for session in sessions]
    num_turns = sum(len(session.prompts) - 1 for session in sessions)
    assert LEAST_SHARE <= sum(edits) / num_turns <= MOST_SHARE
    assert all(edits[place] for place in witnessed(sessions)), "the gate needs moves"


def test_both_runs_of_four_sessions_fit_into_one_session_on_a_slow_cpu(smollm2_folder: Path) -> None:
    """Even if every server computed as much as `exact` does."""
    num_tokens = 0
    for name in ("trace-4", "trace-4-clear"):
        assert RUNS[name].concurrency == 4
        for session in planned(name, smollm2_folder):
            num_computed = len(session.prompts[0].tokens) + sum(
                len(after.tokens) - num_shared(before.tokens, after.tokens)
                for before, after in pairwise(session.prompts)
            )
            num_tokens += LEAST_REPETITIONS * len(RUNS[name].against) * num_computed
    assert num_tokens / TOKENS_A_SECOND / 60 < SESSION_MINUTES


def num_shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_runs_of_four_sessions_ask_for_auto_too() -> None:
    for name in ("trace-4", "trace-4-clear", "trace-auto", "trace-real", "trace-pool"):
        assert RUNS[name].against == ("exact", "auto", "reuse", "stock"), name
    assert RUNS["trace-4"].policies == ("recency@1",)
    assert RUNS["trace-4-clear"].policies == ("clear_tool_uses",)


def test_the_opening_is_chosen() -> None:
    assert _wanted(RUNS["trace-16"]).skip == 12
    assert _wanted(RUNS["trace-4"]).skip == 11
    assert _wanted(RUNS["trace-real"]).skip == 0
