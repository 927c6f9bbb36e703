"""What `bench scale` asks of which engine and when, with engines that answer at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from acmserve.bench.harness.ending import TIME_LIMIT, TimeLimit
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.scale.cells import plan_cells, plan_nested
from acmserve.bench.scale.main import _run, kept_if_whole
from acmserve.bench.scale.run import ScaleEngines, ScaleTimes
from acmserve.errors import AcmError

TEXT = tuple(range(300_000))
CONTEXTS, NUM, ROUNDS = (1024, 8192, 16_384), 5, 2
CELLS = plan_cells(CONTEXTS, (0.5,), (1, 64), at=8192)
BLOCK = 128


class Asked:
    """Answers at once, and lets everything move but under `exact`. After `num` requests the time is over."""

    def __init__(self, num: int | None = None) -> None:
        self.asks: list[Ask] = []
        self.num = num

    def ask(self, ask: Ask) -> EngineReply:
        if self.num is not None and len(self.asks) >= self.num:
            RUN.ended_by = TIME_LIMIT
            raise KeyboardInterrupt
        self.asks.append(ask)
        size, is_exact = len(ask.token_ids), ask.fidelity == "exact"
        receipt = {"kept_tokens": size * (not is_exact), "moved_tokens": 0, "computed_tokens": size * is_exact}
        logprobs = tuple({token: -1.0 - token - (not is_exact) for token in range(20)} for _ in range(ask.max_tokens))
        return EngineReply(0.1, 0, (7,) * ask.max_tokens, "", receipt | {"fallback_reason": None}, logprobs)


class Failing(Asked):
    """Raises `error` behind `at` requests."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__()
        self.at, self.error = at, error

    def ask(self, ask: Ask) -> EngineReply:
        if len(self.asks) >= self.at:
            raise self.error
        return super().ask(ask)


class Clock:
    """Goes on by `each` seconds with every request of an engine."""

    def __init__(self, each: float, engine: Asked) -> None:
        self.each, self.engine = each, engine

    def __call__(self) -> float:
        return self.each * len(self.engine.asks)


def run(asked: list[Asked], limit: TimeLimit | None = None) -> dict[Any, ScaleTimes]:
    measured = [ScaleTimes(cell) for cell in CELLS]
    planned = plan_nested(TEXT, CELLS, NUM * (ROUNDS + 1))
    engines: Any = ScaleEngines(*asked)  # type: ignore[arg-type]
    limit = limit or TimeLimit(None)
    try:
        with kept_if_whole(measured, NUM), limit.kept():
            _run(engines, measured, planned, NUM, 8192, limit, is_timed=True)
    finally:
        RUN.begin()
    return {times.cell: times for times in measured}


def test_a_long_context_is_asked_of_the_engines_at_defaults_alone() -> None:
    ours, stock, defaults, ours_at_defaults = asked = [Asked() for _ in range(4)]
    found = run(asked)
    longest = {id(one): max(len(ask.token_ids) for ask in one.asks) for one in asked}
    assert longest[id(ours)] < 9000
    assert longest[id(stock)] < 9000
    assert longest[id(defaults)] > 9000
    assert longest[id(ours_at_defaults)] > 16_000
    last = found[CELLS[-1]]
    assert set(last.seconds) == {"reuse@defaults", "append@defaults", "auto@defaults", "defaults"}
    assert {len(seconds) for seconds in last.seconds.values()} == {NUM, NUM * ROUNDS}
    assert (last.num_repetitions, last.answers) == (NUM, {})
    assert set(found[CELLS[0]].seconds) == set(last.seconds) | {"reuse", "append", "auto", "exact", "stock"}
    assert all(not times.failures for times in found.values())


def test_many_new_tokens_are_computed_once_for_the_gate_and_not_timed() -> None:
    asked = [Asked() for _ in range(4)]
    found = run(asked)
    for cell in (cell for cell in CELLS if not cell.is_plain):
        times = found[cell]
        assert set(times.seconds) == {name + end for name in ("reuse", "append", "auto") for end in ("", "@defaults")}
        assert times.answers["exact"].is_same
        assert not times.answers["reuse"].is_same
        assert "exact" in times.receipts
    prompts = [ask for ask in asked[2].asks if len(ask.token_ids) > 900]
    assert len({ask.token_ids for ask in prompts if 5000 < len(ask.token_ids) < 8000}) == 2 * NUM, "both plain cells"


def test_contexts_begin_alike_under_one_salt_and_no_edit_finds_another() -> None:
    """So an engine reads each token of the longest context once, and computes each edit."""
    asked = [Asked() for _ in range(4)]
    run(asked)
    for engine in (asked[0], asked[3]):
        assert {ask.salt for ask in engine.asks} == {"scale"}
        heads = defaultdict(set)
        for ask in engine.asks:
            if TEXT[: len(ask.token_ids)] != ask.token_ids:
                shared = next(i for i, token in enumerate(ask.token_ids) if token != i)
                # The timed edit and its longer answer, for the gate, are the same round. `exact` follows its `reuse`.
                heads[ask.token_ids[: shared // BLOCK * BLOCK + BLOCK]].add(ask.fidelity)
        assert {frozenset(found) for found in heads.values()} <= {
            frozenset({"auto"}),
            frozenset({"reuse"}),
            frozenset({"reuse", "exact"}),
        }


def test_a_cut_keeps_lengths_and_repetitions_that_are_whole() -> None:
    counting = [Asked() for _ in range(4)]
    run(counting)
    num = len(counting[3].asks)
    asked = [*[Asked() for _ in range(3)], Asked(num - 8)]
    found = run(asked)
    assert [found[cell].num_repetitions for cell in CELLS if cell.context_tokens <= 8192] == [NUM] * (len(CELLS) - 1)
    last = found[CELLS[-1]]
    assert 0 < last.num_repetitions < NUM
    assert len(last.seconds["defaults"]) == last.num_repetitions
    assert len(last.seconds["reuse@defaults"]) == last.num_repetitions * ROUNDS


def test_a_length_without_time_for_all_its_repetitions_is_given_up_behind_the_second() -> None:
    counting = [Asked() for _ in range(4)]
    run(counting)
    num = len(counting[3].asks)
    asked = [Asked() for _ in range(4)]
    found = run(asked, TimeLimit((num - 8) / 60, Clock(1.0, asked[3])))
    assert [found[cell].num_repetitions for cell in CELLS[:-1]] == [NUM] * (len(CELLS) - 1)
    assert found[CELLS[-1]].num_repetitions == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AcmError("the engine is gone")])
def test_what_ends_a_run_takes_no_length_that_is_whole(error: BaseException) -> None:
    counting = [Asked() for _ in range(4)]
    run(counting)
    for at, is_kept in ((len(counting[0].asks) - 1, True), (3, False)):
        asked = [Failing(at, error), *[Asked() for _ in range(3)]]
        if is_kept:
            found = run(asked)
            assert found[CELLS[0]].num_repetitions == NUM
        else:
            with pytest.raises(type(error)):
                run(asked)


def test_progress_counts_all_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    run([Asked() for _ in range(4)])
    num = NUM * len(CELLS)
    said = [line for line in capsys.readouterr().err.splitlines() if " of " in line]
    assert [line.partition(":")[0] for line in said] == [f"{number} of {num}" for number in range(1, num + 1)]


def test_a_suite_that_times_all_of_two_engines_has_neither_auto_nor_defaults() -> None:
    """`bench gpu` runs it so."""
    from acmserve.bench.scale.run import run_repetition

    times, (ours, stock) = ScaleTimes(CELLS[0]), (Asked(), Asked())
    rounds = plan_nested(TEXT, CELLS[:1], ROUNDS)[CELLS[0]]
    engines: Any = replace(ScaleEngines(None, None), ours=ours, stock=stock)  # type: ignore[type-var]
    run_repetition(engines, times, rounds, "key")
    assert set(times.seconds) == {"reuse", "append", "exact", "stock"}
    assert {ask.salt for ask in ours.asks} == {"key"}
