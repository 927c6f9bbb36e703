"""What a page says of a timed result that has few repetitions, or does not tell what its times rest on."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.provenance.repetitions import few_told, find_repetitions, shortfall_line

QUIET = {"use": {"other_share": 0.01}}
UNKNOWN = "Other work on the machine was not recorded."


@pytest.mark.parametrize(
    ("report", "found"),
    [
        ({"repetitions": 5}, [5]),
        ({"cells": [{"num_repetitions": 5}, {"num_repetitions": 2}]}, [2, 5]),
        ({"stages": {"fold": {"repetitions": 3, "rounds": 1}, "overhead": {}}}, [3]),
        ({"rounds": 9}, [9]),
        ({"rounds_of": {"num_rounds": 5}, "rounds": [{}, {}]}, [5]),
        ({"rows": [{"rounds": True}]}, []),
        ({"machine": {"command": "acmserve bench trace --repetitions 1 --json a.json"}}, [1]),
        ({"repetitions": 5, "machine": {"command": "acmserve bench trace --repetitions=1"}}, [5]),
        ({"machine": {"command": None}}, []),
        ({}, []),
    ],
)
def test_repetitions_are_found_wherever_they_stand(report: dict[str, Any], found: list[int]) -> None:
    """Rounds count where there is nothing else, and neither a list nor a yes is a number of them."""
    assert find_repetitions(report) == found


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (QUIET | {"repetitions": 5}, ""),
        (QUIET | {"repetitions": 4}, "4 repetitions."),
        (QUIET | {"repetitions": 1}, "1 repetition."),
        (QUIET | {"cells": [{"num_repetitions": 2}, {"num_repetitions": 7}]}, "2 to 7 repetitions."),
        (QUIET, "Repetitions were not recorded."),
        ({"repetitions": 9}, f"9 repetitions. {UNKNOWN}"),
        ({"repetitions": 9, "use": {"seconds": 4.0, "other_share": None}}, f"9 repetitions. {UNKNOWN}"),
        ({}, f"Repetitions were not recorded. {UNKNOWN}"),
    ],
)
def test_what_a_result_lacks_is_told(report: dict[str, Any], line: str) -> None:
    assert shortfall_line(report) == line


def test_a_figure_tells_that_it_rests_on_few() -> None:
    assert few_told({"repetitions": 9}, {"cells": [{"num_repetitions": 1}]}) == "1 repetition"
    assert few_told({"repetitions": 4}, {}) == "4 repetitions"
    assert few_told({"repetitions": 5}, {}) == ""
