"""The report of `bench tasks`: means over cases, what a threshold would have done, and no numbers on a red gate."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.agent.estimates import wilson
from acmserve.bench.tasks.auto import grid, judge, simulate
from acmserve.bench.tasks.cases import FIT, HELD_OUT, TASKS
from acmserve.bench.tasks.run import AUTO, EXACT, REPAIRS, REUSE, VARIANTS
from acmserve.bench.tasks.summary import ALL, recorded_row, share_interval, summarise
from acmserve.bench.tasks.table import as_table
from acmserve.plan.auto import DEFAULT_THRESHOLDS, Features

NAMES = [variant.name for variant in VARIANTS]
SAFE = Features(num_moved=600, num_removed=100)
UPDATED = Features(num_moved=600, num_removed=1000, num_echoed=30, num_anew=60)


def row(right: float, moved: int) -> dict[str, Any]:
    same = {"choices": [str(right), "x"], "right": [right, 1.0], "misled": [1 - right, 0.0], "score": [right / 2, 1.0]}
    return same | {"moved_tokens": moved, "chosen": None}


def record(task: str, number: int, features: Features, reuse: float) -> dict[str, Any]:
    served = {name: row(1.0, 0) for name in NAMES}
    served |= {REUSE: row(reuse, 600), AUTO: row(reuse, 600)} | {repair.name: row(reuse, 472) for repair in REPAIRS}
    return {
        "case": f"{task}/{number}",
        "task": task,
        "setting": "s",
        "half": FIT if number % 2 == 0 else HELD_OUT,
        "suffix_tokens": 600,
        "features": asdict(features),
        "variants": served,
    }


def records() -> list[dict[str, Any]]:
    """Moving loses an answer in the first task, whose state is updated, and nothing elsewhere."""
    harmed = [record(TASKS[0], number, UPDATED, reuse=0.0) for number in range(4)]
    return harmed + [record(task, number, SAFE, reuse=1.0) for task in TASKS[1:] for number in range(4)]


def report(failures: list[str]) -> dict[str, Any]:
    return {
        "model": "m",
        "num_cases": 20,
        "digest": "0123",
        "gate": {"green": not failures, "failures": failures},
        "refusal": None,
        "at_floor": {"a large": 0.1},
        "variants": [{"name": v.name, "title": v.title} for v in VARIANTS],
        "summary": [] if failures else summarise(records(), NAMES, 0),
        "auto": None if failures else judge(records()),
    }


def test_a_row_counts_each_case_once_and_stands_beside_exact() -> None:
    rows = {(r["task"], r["variant"]): r for r in summarise(records(), NAMES, 0)}
    harmed, together = rows[TASKS[0], REUSE], rows[ALL, REUSE]
    assert (harmed["num_cases"], harmed["num_questions"]) == (4, 8)
    assert (harmed["right"], harmed["right_beside_exact"], harmed["misled"]) == (0.5, -0.5, 0.5)
    assert harmed["same_choice_as_exact"] == 0.5
    assert (together["right"], together["right_beside_exact"], together["moved_share"]) == (0.9, -0.1, 1.0)
    low, high = together["right_beside_exact_interval"]
    assert -0.3 < low < -0.1 < high <= 0.0
    assert rows[ALL, EXACT]["moved_share"] == 0.0


def test_a_row_tells_cases_in_which_something_moved_apart() -> None:
    held = records()
    for one in held[::2]:
        one["variants"][REUSE] = row(1.0, 0)
    rows = {(r["task"], r["variant"]): r for r in summarise(held, NAMES, 0)}
    harmed = rows[TASKS[0], REUSE]
    assert (harmed["num_cases"], harmed["num_moved_cases"]) == (4, 2)
    assert (harmed["right_beside_exact"], harmed["where_moved_beside_exact"]) == (-0.25, -0.5)
    assert harmed["where_moved_beside_exact_interval"] == [-0.5, -0.5]
    exact = rows[ALL, EXACT]
    assert (exact["num_moved_cases"], exact["where_moved_beside_exact"]) == (0, None)
    assert exact["where_moved_beside_exact_interval"] is None


def test_a_recorded_row_has_no_size_at_the_floor() -> None:
    """A size that `exact` does not answer could lose nothing. The summary of an older file averages it in."""
    held = records()
    large = [record(TASKS[0], number, UPDATED, reuse=0.0) | {"setting": "large"} for number in range(4)]
    for one in large:
        for served in one["variants"].values():
            served["right"] = [0.0, 0.0]
    for name in (REUSE, AUTO):
        found = recorded_row({"records": [*held, *large], "seed": 0}, ALL, name)
        assert found == recorded_row({"records": held, "seed": 0}, ALL, name)
        assert found["num_cases"] == len(held)


def test_thresholds_chosen_on_one_half_keep_updated_state_exact_on_the_other() -> None:
    judged = judge(records())
    assert judged["product"]["loss"] == 0.1
    assert (judged["product"]["num_harmful"], judged["product"]["num_missed"]) == (4, 4)
    chosen = judged["chosen"]["held_out"]
    assert (chosen["loss"], chosen["moved_share"], chosen["num_missed"], chosen["is_good"]) == (0.0, 0.8, 0, True)
    moved = [point["fit"]["moved_share"] for point in judged["front"]]
    assert moved == sorted(moved)
    assert (moved[-1], judged["front"][-1]["held_out"]["loss"]) == (0.9573, 0.1), (
        "updated text is at best repaired: 472 of 600 tokens are moved"
    )


def test_a_set_with_one_half_only_is_judged_without_choosing() -> None:
    judged = judge([one for one in records() if one["half"] == FIT])
    assert (judged["chosen"], judged["front"]) == (None, [])
    assert judged["product"]["num_cases"] == 10


def test_the_first_thresholds_tried_are_those_of_the_product() -> None:
    tried = list(grid())
    assert tried[0] == DEFAULT_THRESHOLDS
    assert len(set(tried[1:])) == len(tried) - 1
    assert simulate(records(), tried[0]).loss == 0.0


@given(st.floats(0, 1), st.integers(1, 500))
def test_wilson_holds_the_share_and_narrows_with_the_cases(share: float, num: int) -> None:
    low, high = wilson(share, num)
    assert 0.0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1.0
    wider = wilson(share, max(num // 2, 1))
    assert high - low <= wider[1] - wider[0] + 1e-9


def test_cases_that_all_agree_leave_doubt() -> None:
    assert share_interval([1.0] * 10, 0) == [pytest.approx(0.7225, abs=1e-3), 1.0]
    assert share_interval([], 0) is None


def test_a_green_table_says_what_the_target_came_to() -> None:
    table = "\n".join(as_table(report([])))
    assert "target (each task within 2 points, 50 % moved) on the held-out half: met" in table
    assert "of 4 cases that reuse harms 4 missed" in table
    assert "are out: a large (10 %)" in table
    assert "-10.0 [-20, -2] (20)" in table
    assert all(task in table for task in TASKS)


def test_a_red_gate_gives_the_failure_and_no_number() -> None:
    table = "\n".join(as_table(report(["pi-llm/1, fold, exact: 5 tokens were moved under exact"])))
    assert "5 tokens were moved under exact" in table
    assert "%" not in table
