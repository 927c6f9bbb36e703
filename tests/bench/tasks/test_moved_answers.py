"""Answers that `auto` lost or won are counted among those that it could lose or win."""

from __future__ import annotations

from typing import Any

from acmserve.bench.tasks.moved_answers import count_moved_answers
from acmserve.bench.tasks.run import AUTO, EXACT


def record(moved: int, exact: list[float], auto: list[float]) -> dict[str, Any]:
    return {"variants": {EXACT: {"right": exact, "moved_tokens": 0}, AUTO: {"right": auto, "moved_tokens": moved}}}


def test_cases_in_which_nothing_moved_are_no_denominator() -> None:
    found = count_moved_answers(
        [record(0, [1.0] * 8, [1.0] * 8), record(5, [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]), record(1, [0.0], [0.0])], AUTO
    )
    assert (found.num_cases, found.num_moved_cases, found.num_questions, found.num_exact) == (3, 2, 12, 8)
    assert (found.lost, found.won) == ("1 of 2", "1 of 2")
