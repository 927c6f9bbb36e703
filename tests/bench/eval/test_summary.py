"""Questions about one context are one observation: four of them that are answered alike tell no more than one."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest

from acmserve.bench.agent.estimates import grouped_bounded_interval, grouped_student_interval, wilson
from acmserve.bench.eval.baselines.way_limits import WayLimits
from acmserve.bench.eval.page import as_markdown
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.eval.summary import by_setting, number_told, summarise
from acmserve.bench.eval.table import TASK_TABLE, WAY_TABLE

BASELINES = {"baseline": "baseline", "rag": "baseline"}
NEWCOMBE = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]
"""Right, of how many, and Wilson's interval (Newcombe, Statistics in Medicine 17, 1998, table I, method 3)."""
COUNTS = {"error": "", "unmet": False, "num_errors": 0, "tools": {}, "seconds": 1.0, "update": None}


def record(way: str, context: int, question: str, score: float, *, has_group: bool = True) -> dict[str, Any]:
    group = f"tokens300/{context}"
    told = {"task": "oolong", "setting": "tokens300", "sample": f"{group}/{question}", "way": way, "score": score}
    return {**told, **({"group": group} if has_group else {}), "completions": [[0, 0, 100, 1]], **COUNTS}


def records(right: int, num: int, questions: str, *, has_group: bool = True) -> list[dict[str, Any]]:
    """Contexts with as many questions as there are letters, all answered alike. With the whole text all are right."""
    return [
        record(way, context, question, float(way == "baseline" or context < right), has_group=has_group)
        for way in BASELINES
        for context in range(num)
        for question in questions
    ]


def row_of(held: list[dict[str, Any]], way: str = "rag") -> dict[str, Any]:
    return next(row for row in summarise(held, BASELINES, PriceRatios()) if row["way"] == way)


@pytest.mark.parametrize(("right", "num", "low", "high"), NEWCOMBE)
@pytest.mark.parametrize("questions", ["a", "abcd"])
def test_the_interval_of_a_score_is_over_contexts(
    right: int, num: int, low: float, high: float, questions: str
) -> None:
    held = records(right, num, questions)
    row = row_of(held)
    assert row["score_interval"] == [low, high]
    assert (row["num_samples"], row["num_contexts"]) == (num * len(questions), num)
    assert by_setting(held)[1]["score_interval"] == [low, high]


@pytest.mark.parametrize("has_group", [True, False])
def test_four_questions_alike_have_the_difference_of_one(has_group: bool) -> None:
    """Also in records of older journals, where the name alone tells the context."""
    one, four = (row_of(records(5, 14, questions, has_group=has_group)) for questions in ("a", "abcd"))
    assert four["difference_interval"] == one["difference_interval"]
    assert four["difference_interval"][0] < four["difference"] == one["difference"] < four["difference_interval"][1]
    assert (four["num_samples"], four["num_contexts"]) == (56, 14)


@pytest.mark.parametrize("num", [2, 4, 7])
def test_few_contexts_have_an_interval_that_holds_the_mean_as_often_as_it_says(num: int) -> None:
    """By 400 draws: a bootstrap of two holds it in half of them, Student's in about 95 of 100."""
    draw, held = random.Random(5), 0
    for _ in range(400):
        low, high = grouped_student_interval([[draw.gauss(0.0, 1.0)] * 3 for _ in range(num)])
        held += low <= 0.0 <= high
    assert 0.92 <= held / 400 <= 0.98


def test_a_difference_over_few_contexts_is_as_wide_as_it_has_to_be() -> None:
    """Two contexts tell nothing: Student's interval is wider than differences can be."""
    assert row_of(records(1, 2, "abcd"))["difference_interval"] == [-1.0, 1.0]
    few, many = (row_of(records(num // 2, num, "a"))["difference_interval"] for num in (10, 12))
    assert few[1] - few[0] > many[1] - many[0]


def test_contexts_of_unequal_size_weigh_by_it() -> None:
    low, high = grouped_student_interval([[1.0] * 9, [0.0]])
    assert (low + high) / 2 == pytest.approx(0.9)


def test_one_context_has_no_interval_of_a_difference() -> None:
    row = row_of(records(0, 1, "abcd"))
    assert (row["difference"], row["difference_interval"]) == (-1.0, None)


def test_questions_of_other_tasks_are_each_their_own() -> None:
    """Their names have a slash, too: the setting stands in front of it."""
    held = records(2, 4, "ab", has_group=False)
    for number, one in enumerate(held):
        one |= {"task": "frames", "sample": f"tokens300/{number}"}
    assert row_of(held)["num_contexts"] == 8


def test_contexts_of_unequal_size_tell_less_than_as_many_of_one_size() -> None:
    """Four, one and one question tell as much as 6 * 6 / (16 + 1 + 1) = 2 contexts. By hand: z = 3.84 / 2."""
    assert grouped_bounded_interval([[0.0] * 4, [0.0], [0.0]], 0, 1) == [0.0, round(1.92073 / 2.92073, 4)]
    assert grouped_bounded_interval([[1.0, 0.0], [1.0], [0.0]], 0, 1) == pytest.approx(wilson(0.5, 16 / 6), abs=1e-4)


def test_the_number_of_contexts_is_told_where_it_is_another() -> None:
    assert [number_told(*nums) for nums in ((28, 28), (28, None), (56, 14), (4, 1))] == [
        *("28", "28", "56 of 14 contexts", "4 of 1 context")
    ]


@pytest.mark.parametrize("is_older", [False, True])
def test_a_report_tells_it_in_every_table(is_older: bool) -> None:
    """A row of an older report does not know its contexts."""
    rows = summarise(records(5, 14, "abcd"), BASELINES, PriceRatios())
    for row in rows if is_older else []:
        del row["num_contexts"]
    told = "56" if is_older else "56 of 14 contexts"
    report = {"ways": dict.fromkeys(BASELINES, ""), "rows": rows, "settings": []}
    assert {row[1] for row in WAY_TABLE.rows(report)} == {told}
    assert f"n {told}" in str(list(TASK_TABLE.rows(report)))
    head = {"model": "m", "has_acm": True, "budget": 0.5, "num_samples": 56, "seed": 0, "run": "", "skipped": {}}
    head["limits"] = asdict(WayLimits())
    prices = {"write": 1.25, "read": 0.1, "output": 5.0, "base": 1.0}
    page = as_markdown({**report, **head, "prices": prices, "num_planned": 112, "num_played": 112})
    assert f"| rag | {told} | 0 | 35.7 [" in page


def test_updates_of_maps_are_counted_where_each_answer_tells_them() -> None:
    """A refused question tells none. A record of an older journal tells none either, and then nothing is said."""
    held = records(2, 3, "ab")
    assert "num_updates" not in row_of(held)
    for number, one in enumerate(held):
        one |= {"num_updates": number % 2}
    assert row_of(held)["num_updates"] == 3
    assert "num_beyond_budget" not in row_of(held)
    full = [one | {"num_beyond_budget": 2} for one in held]
    assert row_of(full)["num_beyond_budget"] == 2 * len([one for one in full if one["way"] == row_of(full)["way"]])
    refused = {name: value for name, value in held[-1].items() if name != "num_updates"} | {"error": "too long"}
    assert row_of([*held[:-1], refused])["num_updates"] == 2
    assert "num_updates" not in row_of([*held[:-1], refused | {"error": ""}])
