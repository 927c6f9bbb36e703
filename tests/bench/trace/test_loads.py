"""The runs of several sessions: how many of their turns edit, and how long they take. Plans only, no engine."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from acmserve.bench.agent.plain_prompt import Plain, PromptWriter
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.trace.load import PlannedSession, plan_arrivals
from acmserve.bench.trace.main import BENCHMARK, _parser, _recordings, _wanted
from acmserve.bench.trace.plan import plan_parts
from acmserve.bench.trace.prompts import Limits
from acmserve.bench.trace.runs import CLEARED_TOKENS
from acmserve.bench.trace.witness import witnessed
from acmserve.errors import AcmError
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.models.tokenizer import ServedTokenizer

LEAST_SHARE, MOST_SHARE = 0.30, 0.35
"""Of the turns that edit: a larger share than a third would flatter."""
RUNS = {run.name: _parser().parse_args(run.arguments[1:]) for run in BENCHMARK.runs}
TOKENS_A_SECOND, STEPS_A_SECOND = 190, 20
"""Of prompts, and of a batch of answers, on a slow CPU."""
_NO_STEP = 1e-6
MOST_MINUTES = {"trace-4": 90, "trace-4-clear": 90, "trace-16": 150, "trace-open": 150}


def test_answers_of_loads_are_as_long_as_the_recorded_ones(smollm2_folder: Path) -> None:
    """A turn of 16 tokens would have a third of its decode, and turns a second are the bar."""
    for name in MOST_MINUTES:
        assert RUNS[name].answer_tokens == 0, name
        lengths = [one.num_answered for session in planned(name, smollm2_folder) for one in session.prompts[1:]]
        assert sum(lengths) / len(lengths) > 3 * 16, name


def test_loads_run_where_exact_has_to_sample_the_tokens_of_stock() -> None:
    """In bfloat16 a CPU without matrix units makes stock the weaker baseline."""
    assert not any(RUNS[name].at_defaults for name in MOST_MINUTES)


class OnceCounted(PromptWriter):
    """A prompt is weighed, and then written as it is. Its tokens are counted once."""

    _last: tuple[Sequence[Plain], tuple[int, ...]] = ((), ())

    def tokens(self, messages: Sequence[Plain]) -> tuple[int, ...]:
        if messages != self._last[0]:
            self._last = copy.deepcopy(messages), super().tokens(messages)
        return self._last[1]


@cache
def writers(model: Path) -> tuple[ServedTokenizer, PromptWriter]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    return ServedTokenizer(tokenizer), OnceCounted(tokenizer, TOOLS_TEMPLATE.read_text(encoding="utf-8"))


@cache
def planned(name: str, model: Path) -> tuple[PlannedSession, ...]:
    return planned_with(name, model, None)


def planned_with(name: str, model: Path, limits: Limits | None) -> tuple[PlannedSession, ...]:
    """`limits` None: those of the run."""
    options = RUNS[name]
    options.repetitions = 1
    served, writer = writers(model)
    wanted = _wanted(options)
    wanted = replace(wanted, limits=limits or wanted.limits)
    (part,) = plan_parts(wanted, _recordings(options, served), writer, served)
    return part.repetitions[0]


@pytest.mark.parametrize("name", ["trace-4", "trace-16"])
def test_about_a_third_of_the_turns_edit(name: str, smollm2_folder: Path) -> None:
    sessions = planned(name, smollm2_folder)
    edits = [sum(prompt.is_edited for prompt in session.prompts[1:]) for session in sessions]
    num_turns = sum(len(session.prompts) - 1 for session in sessions)
    assert LEAST_SHARE <= sum(edits) / num_turns <= MOST_SHARE
    assert all(edits[place] for place in witnessed(sessions)), "the gate needs moves"


def edits_of(sessions: Sequence[PlannedSession], num_turns: int) -> list[int]:
    """By session, in so many turns behind the opening."""
    return [sum(prompt.is_edited for prompt in session.prompts[1 : num_turns + 1]) for session in sessions]


def has_later_edits(edits: Sequence[int]) -> bool:
    """Every session edits twice, and two of three edits are not the first of their session."""
    return min(edits) >= 2 and sum(edits) - len(edits) >= 2 * sum(edits) / 3


def test_clearing_is_measured_where_most_edits_are_later_ones(smollm2_folder: Path) -> None:
    """By a rule that knows no time: the shortest window that has them. Fewer turns edit than in other loads."""
    sessions, num_turns = planned("trace-4-clear", smollm2_folder), RUNS["trace-4-clear"].turns
    edits = edits_of(sessions, num_turns)
    assert has_later_edits(edits)
    assert [shorter for shorter in range(num_turns) if has_later_edits(edits_of(sessions, shorter))] == []
    assert sum(edits) / (num_turns * len(sessions)) < LEAST_SHARE
    assert all(edits[place] for place in witnessed(sessions)), "the gate needs moves"


def test_a_budget_below_that_of_clearing_has_no_room_for_some_step(smollm2_folder: Path) -> None:
    limits = Limits(CLEARED_TOKENS - 500, int(0.6 * (CLEARED_TOKENS - 500)))
    with pytest.raises(AcmError, match="tokens too many; give a larger budget"):
        planned_with("trace-4-clear", smollm2_folder, limits)


@pytest.mark.parametrize("name", MOST_MINUTES)
def test_a_load_ends_in_time_on_a_slow_cpu(name: str, smollm2_folder: Path) -> None:
    """Even if every server computed as much as `exact` does."""
    options, sessions = RUNS[name], planned(name, smollm2_folder)
    opening = sum(len(session.prompts[0].tokens) for session in sessions) / TOKENS_A_SECOND
    draws = [plan_arrivals(len(sessions), options.arrivals, number) for number in range(LEAST_REPETITIONS)]
    seconds = sum(opening + replayed_seconds(sessions, begins) for begins in draws)
    assert len(sessions) == options.concurrency
    assert len(options.against) * seconds / 60 < MOST_MINUTES[name]


def replayed_seconds(sessions: tuple[PlannedSession, ...], begins: list[float]) -> float:
    """Prompts are read one after the other, whoever asks first. Nobody decodes meanwhile, and all do behind them."""
    asked = sorted(zip(begins, range(len(sessions)), [1] * len(sessions), strict=True))
    answering: dict[int, tuple[int, float]] = {}
    now = 0.0
    while asked or answering:
        if asked and (asked[0][0] <= now or not answering):
            at, place, number = heapq.heappop(asked)
            before, after = sessions[place].prompts[number - 1 : number + 1]
            num_computed = len(after.tokens) - num_shared(before.tokens, after.tokens)
            now = max(now, at) + num_computed / TOKENS_A_SECOND
            answering[place] = (number, after.num_answered)
        else:
            soonest = now + min(left for _, left in answering.values()) / STEPS_A_SECOND
            until = min(soonest, asked[0][0]) if asked else soonest
            now, num_steps = until, (until - now) * STEPS_A_SECOND
            answering = {one: (turn, left - num_steps) for one, (turn, left) in answering.items()}
            for place, (number, left) in list(answering.items()):
                if left < _NO_STEP:
                    del answering[place]
                    if number + 1 < len(sessions[place].prompts):
                        heapq.heappush(asked, (now, place, number + 1))
    return now


def test_an_open_load_arrives_while_it_is_measured(smollm2_folder: Path) -> None:
    """In each repetition the last session begins behind half the work of all, and not behind that of all others."""
    sessions = planned("trace-open", smollm2_folder)
    draws = [plan_arrivals(len(sessions), RUNS["trace-open"].arrivals, number) for number in range(LEAST_REPETITIONS)]
    assert len(set(map(tuple, draws))) == LEAST_REPETITIONS, "each has a draw of its own"
    for begins in draws:
        check_arrivals(sessions, begins)


def check_arrivals(sessions: Sequence[PlannedSession], begins: Sequence[float]) -> None:
    assert begins[-1] > replayed_seconds(sessions, [0.0] * len(sessions)) / 2
    assert replayed_seconds(sessions[:-1], begins[:-1]) > begins[-1]


def test_every_session_of_a_load_has_a_text_of_its_own(smollm2_folder: Path) -> None:
    for name in MOST_MINUTES:
        sessions = planned(name, smollm2_folder)
        assert len({session.prompts[0].tokens for session in sessions}) == len(sessions), name


def test_a_budget_may_be_given() -> None:
    assert _wanted(RUNS["trace-4"]).limits == Limits(6_000, 3_600)
    assert _wanted(RUNS["trace-16"]).limits == Limits(3_000, 1_800)
    real = ["--traces", "agentperf", "--policies", "cwl"]
    assert _wanted(_parser().parse_args(real)).limits is None
    assert _wanted(_parser().parse_args([*real, "--budget", "5000"])).limits == Limits(5_000, 3_000)


def num_shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_runs_of_four_sessions_ask_for_auto_too() -> None:
    for name in ("trace-4", "trace-4-clear", "trace-auto", "trace-real", "trace-pool"):
        assert RUNS[name].against == ("exact", "auto", "reuse", "stock"), name
    assert RUNS["trace-4"].policies == ("recency@1",)
    assert _wanted(RUNS["trace-4-clear"]).limits == Limits(3_500, 2_100)
    assert RUNS["trace-4-clear"].policies == ("clear_tool_uses",)


def test_the_opening_is_chosen() -> None:
    assert _wanted(RUNS["trace-16"]).skip == 4
    assert _wanted(RUNS["trace-4"]).skip == 11
    assert _wanted(RUNS["trace-real"]).skip == 0
