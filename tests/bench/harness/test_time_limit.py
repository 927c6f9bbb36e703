"""`--max-minutes` of a benchmark that repeats: what does not fit is left out, and what is cut is given up."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import pytest

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.ending import EXIT_CODES, TIME_LIMIT, TimeLimit, end_after, run_to_its_end
from acmserve.bench.harness.run_log import RUN


class Clock:
    """Seconds that are told, and those that pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def began(minutes: float | None, *took: float) -> list[int]:
    """The repetitions that begin, where each takes so many seconds."""
    clock, numbers = Clock(), []
    for number in TimeLimit(minutes, clock).numbers(len(took)):
        numbers.append(number)
        clock.seconds += took[number - 1]
    return numbers


def test_a_repetition_that_would_not_end_in_time_does_not_begin() -> None:
    assert began(None, 1000.0, 1000.0) == [1, 2]
    assert began(10, 200.0, 200.0, 200.0, 200.0) == [1, 2, 3]
    assert began(10, 201.0, 201.0, 201.0) == [1, 2]
    assert began(10, 400.0, 200.0) == [1], "as the last one took"
    assert began(10, 300.0, 100.0, 100.0, 100.0, 100.0) == [1, 2, 3, 4]


def test_a_block_that_is_cut_ends_and_the_program_goes_on() -> None:
    seen: list[str] = []

    def run(arguments: Sequence[str]) -> int:
        with TimeLimit(5).kept():
            end_after(0.001)
            time.sleep(60)
            seen.append("slept")
        seen.append("told")
        return 0

    assert run_to_its_end(Benchmark("cut", "", run, takes_limit=True), []) == 0
    assert seen == ["told"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_behind_the_block_no_limit_ends_anything() -> None:
    seconds_left: list[float] = []

    def run(arguments: Sequence[str]) -> int:
        with TimeLimit(5).kept():
            seconds_left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        seconds_left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        return 0

    assert run_to_its_end(Benchmark("whole", "", run, takes_limit=True), []) == 0
    inside, behind = seconds_left
    assert inside > 0.0 == behind


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_of_somebody_else_ends_the_run(
    number: signal.Signals, name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(arguments: Sequence[str]) -> int:
        with TimeLimit(5).kept():
            signal.raise_signal(number)
        return 0

    # A shell without a terminal switches SIGINT off for what it starts in the background.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert run_to_its_end(Benchmark("ended", "", run, takes_limit=True), []) == EXIT_CODES[name]
    finally:
        signal.signal(number, before)
    assert RUN.ended_by == ""
    assert name != TIME_LIMIT
