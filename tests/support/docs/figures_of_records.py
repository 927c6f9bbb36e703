"""Figures that pages quote and no file has as one number: they are made of its rounds or cases. Pure: reports in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acmserve.bench.precompute.table import precomputed_counts, spent_and_saved

IN_MEDIAN = "{:g} were accepted in the median"


def range_accepted(kind: int) -> Callable[[Any], str]:
    """Of the drafted tokens of a case: the fewest and the most."""

    def found(report: Any) -> str:
        accepted = report["kinds"][kind]["accepted"]
        return f"{accepted['least']} to {accepted['most']}"

    return found


def of_whole_draft(way: str) -> Callable[[Any], float]:
    """Seconds of the one case whose draft was accepted whole."""

    def found(report: Any) -> float:
        (case,) = (one for one in report["cases"] if one["accepted_tokens"] == one["drafted_tokens"])
        return float(case[f"{way}_seconds"])

    return found


def seconds_spent(report: Any) -> float:
    """Seconds that the engine worked ahead, in all rounds."""
    return spent_and_saved(report["rounds"])[0]


def seconds_saved(report: Any) -> float:
    return spent_and_saved(report["rounds"])[1]


def share_that_was(what: str) -> Callable[[Any], float]:
    """Percent of the precomputed tokens."""

    def found(report: Any) -> float:
        counts = precomputed_counts(report["rounds"])
        num, computed = counts[what], counts["computed"]
        assert num is not None
        assert computed
        return 100 * num / computed

    return found
