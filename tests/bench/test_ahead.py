"""The numbers of `bench ahead`, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.agent_trace import Exchanged, Trace
from acmserve.bench.ahead import Course, as_report, as_table, check_course, courses
from acmserve.bench.budget_run import Turn

TRACE = Trace(tuple(Exchanged(("said",), None, "asked") for _ in range(4)), {})


def turn(computed: int, seconds: float, *, evicted: int = 0, ahead: int = 0, prompt: int = 5000) -> Turn:
    receipt = {
        "prompt_tokens": prompt,
        "kept_tokens": prompt - computed,
        "moved_tokens": 0,
        "computed_tokens": computed,
        "ahead_tokens": ahead,
    }
    return Turn(receipt, seconds, [], evicted)


def course(**changed: Any) -> Course:
    turns = [turn(200, 0.2), turn(210, 0.3), turn(220, 0.4, evicted=2000, ahead=3000), turn(3000, 2.0, evicted=2000)]
    counters = {"ahead_computed_tokens": 4000.0, "ahead_used_tokens": 3000.0}
    made = Course("exact, predict", {}, turns, [True, True, True, True], counters)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def test_turns_behind_an_eviction_are_told_apart() -> None:
    [row] = as_report("tiny", TRACE, [course()], 0.5)["courses"]
    assert (row["num_evictions"], row["num_foreseen"], row["ahead_used_share"]) == (2, 1, 0.75)
    assert row["eviction_seconds"] == {"median": 1.2, "p90": 2.0}
    assert row["plain_seconds"] == {"median": 0.3, "p90": 0.3}
    assert row["eviction_new_tokens"] == {"median": 2000, "p90": 2000}
    assert row["eviction_old_tokens"] == {"median": 500, "p90": 1000}
    table = "\n".join(as_table(as_report("tiny", TRACE, [course()], 0.5)))
    assert "0.25 to 2.5 s" in table
    assert "75%" in table


def test_a_later_step_of_a_loop_is_no_append_behind_a_pause() -> None:
    [row] = as_report("tiny", TRACE, [course(rests=[True, False, True, True])], 1)["courses"]
    assert row["plain_seconds"] is None


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ([turn(1, 1.0)], "1 of 4 turns"),
        ([*[turn(1, 1.0)] * 3, turn(1, 1.0, prompt=6001)], "the budget is 6000"),
        ([*[turn(1, 1.0)] * 3, turn(1, 1.0, ahead=5000)], "does not add up"),
    ],
)
def test_a_course_that_went_wrong_is_not_reported(turns: list[Turn], says: str) -> None:
    made = course(turns=turns)
    made.failures = check_course(made, TRACE)
    assert says in made.failures[0]
    report = as_report("tiny", TRACE, [made], 1)
    assert report["courses"] == []
    assert says in as_table(report)[1]


def test_the_courses_differ_in_what_is_compared() -> None:
    assert [made.acm for made in courses()] == [
        {"fidelity": "exact", "ahead": "off"},
        {"fidelity": "exact", "ahead": "predict"},
        {"fidelity": "reuse", "ahead": "off"},
    ]
