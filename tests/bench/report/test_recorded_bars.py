"""What recorded results have to reach: families that move, classes judged right, tokens computed on hybrid models.

Each bar is a function of a report, and each has a report that misses it by one as its control.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from acmserve.bench.families.family import DEFAULT
from acmserve.bench.families.main import as_report
from acmserve.bench.families.runs import NO_REASON, moves, why_not
from tests.support.docs.figures import read_result

Report = dict[str, Any]
MIN_FAMILIES = 20
MIN_SHARE_RIGHT = 0.9
MAX_SECONDS = 2.0
REFUSED = "refused"
MIN_TIMES_FEWER = 5


def enough_families_move(report: Report) -> bool:
    """By default, each with a comparison behind it. Whatever does not move has a reason."""
    again = as_report(report["rows"])
    has_reasons = all(why_not(row) != NO_REASON for row in report["rows"] if not moves(row))
    return again["gate"]["green"] and again["moved"][DEFAULT] >= MIN_FAMILIES and has_reasons


def classes_are_judged_right(report: Report) -> bool:
    """Nine of ten that can be built, each in time, and none that has to be refused is accepted."""
    built = [one for one in report["judgements"] if one["right"] is not None]
    accepted = [one for one in built if one["expected"] == REFUSED and one["found"] != REFUSED]
    is_fast = all(one["seconds"] < MAX_SECONDS for one in built)
    return is_fast and not accepted and sum(one["right"] for one in built) >= MIN_SHARE_RIGHT * len(built)


def batches_compute_a_fifth(report: Report) -> bool:
    """Of what evictions one at a time compute without boundaries, on the same model and the same turns."""
    runs = {run["name"]: run for run in report["runs"]}
    moved, stock = (runs[name] for name in ("cwl-moves", "cwl-single-without"))
    assert len(moved["turns"]["prompt_tokens"]) == len(stock["turns"]["prompt_tokens"]) == 212
    return bool(MIN_TIMES_FEWER * moved["total_computed_tokens"] <= stock["total_computed_tokens"])


def one_family_less(report: Report) -> None:
    moved = [row for row in report["rows"] if row["kind"] == DEFAULT and moves(row)]
    for row in moved[MIN_FAMILIES - 1 :]:
        row["oracle"][0]["distance"] = 1.0


def a_reason_less(report: Report) -> None:
    row = next(row for row in report["rows"] if row.get("fold") and not moves(row))
    row["fold"]["reason"] = row["doctor"] = None


def wrong_classes(report: Report) -> None:
    for one in [one for one in report["judgements"] if one["right"]][: len(report["judgements"]) // 10]:
        one["right"] = False


def a_slow_class(report: Report) -> None:
    report["judgements"][1]["seconds"] = MAX_SECONDS


def an_accepted_class(report: Report) -> None:
    one = next(one for one in report["judgements"] if one["expected"] == REFUSED and one["right"])
    one["found"] = "turned"


def a_fifth_and_a_token(report: Report) -> None:
    runs = {run["name"]: run for run in report["runs"]}
    fifth = runs["cwl-single-without"]["total_computed_tokens"] // MIN_TIMES_FEWER
    runs["cwl-moves"]["total_computed_tokens"] = fifth + 1


BARS: dict[str, tuple[Callable[[Report], bool], tuple[Callable[[Report], None], ...]]] = {
    "families": (enough_families_move, (one_family_less, a_reason_less)),
    "audit": (classes_are_judged_right, (wrong_classes, a_slow_class, an_accepted_class)),
    "budget-windows": (batches_compute_a_fifth, (a_fifth_and_a_token,)),
    "budget-recurrent": (batches_compute_a_fifth, (a_fifth_and_a_token,)),
}


@pytest.mark.parametrize("name", BARS)
def test_a_recorded_result_reaches_its_bar(name: str) -> None:
    reaches, controls = BARS[name]
    report = read_result(name)
    assert reaches(report)
    for spoil in controls:
        spoilt = copy.deepcopy(report)
        spoil(spoilt)
        assert not reaches(spoilt), spoil.__name__
