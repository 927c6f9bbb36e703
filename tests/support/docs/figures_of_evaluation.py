"""Figures that the README quotes of the evaluation: the ways that took text out. Pure: a report in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acmserve.bench.eval.task_evidence import (
    WayDifference,
    best_of,
    computed_beside_baseline,
    removals_of,
    told_apart,
    within_budget,
    worst_of,
)
from acmserve.bench.eval.ways import BUDGET
from acmserve.bench.harness.markdown_text import points


def removing_ways(report: Any) -> list[WayDifference]:
    """The ways that took text out, over all that they play. Of those that are alike, the first.

    One that plays a single task does not stand beside them.
    """
    ways = told_apart(removals_of(report["rows"]), report["rows"])
    most = max(one.num_samples for one in ways)
    return [one for one in ways if 2 * one.num_samples > most]


def extreme_ways(report: Any) -> tuple[WayDifference, WayDifference]:
    """The worst and the best way of the evaluation, of those that took text out.

    One that was over its budget in most samples of a task is not the best.
    """
    ways = removing_ways(report)
    worst, best = worst_of(ways), best_of(within_budget(ways, report["rows"]))
    assert worst is not None
    assert best is not None
    return worst, best


def extreme_way(index: int) -> Callable[[Any], str]:
    """The difference of the worst, 0, or of the best, 1."""

    def found(report: Any) -> str:
        way = extreme_ways(report)[index]
        return points(way.difference, way.interval)

    return found


def kinds_of_ways(report: Any) -> str:
    """How many ways took text out and differ, as budgets where they are nothing else."""
    ways = removing_ways(report)
    return f"{len(ways)} {'budgets' if all(one.way.startswith(BUDGET) for one in ways) else 'ways'} that differ"


def num_within(report: Any) -> int:
    """How many of them stayed within their budget in most samples of each task."""
    return len(within_budget(removing_ways(report), report["rows"]))


def ways_compute(report: Any) -> str:
    """Tokens that the worst and the best compute beside their baseline."""
    worst, best = (computed_beside_baseline(report["rows"], one.way) for one in extreme_ways(report))
    return f"{worst:.2f} and {best:.2f} times"
