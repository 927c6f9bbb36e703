"""Figures that pages quote and no file has as one number: they are made of its rounds or cases. Pure: reports in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acmserve.bench.precompute.table import precomputed_counts, spent_and_saved
from acmserve.bench.repairs import thoughts
from acmserve.bench.repairs.recorded import recorded_row
from acmserve.bench.repairs.summary import MAX_KL, MIX
from acmserve.bench.repairs.ways import AUTO, REUSE
from acmserve.bench.tasks.generators import unrelated

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


def reuse_on_unrelated_text(report: Any) -> float:
    """Nats to exact answers, where the kept text has nothing to do with the folded one."""
    return float(recorded_row(report, unrelated.TASK, REUSE.name)["kl"])


def moved_of_mix(report: Any) -> float:
    """Percent of what could move that `auto` moves, over the whole mix."""
    return 100 * float(recorded_row(report, MIX, AUTO.name)["moved_share"])


def families_too_far(report: Any) -> str:
    """In how many families of edits `auto` is over the bar, and how many there are."""
    families = {row["task"] for row in report["summary"]} - {MIX}
    far = [task for task in families if recorded_row(report, task, AUTO.name)["kl"] > MAX_KL]
    return f"{len(far)} of {len(families)}"


def of_chain(way: str, key: str, factor: float = 1) -> Callable[[Any], float]:
    """A value of one way to serve chains of dropped thoughts."""
    return lambda report: factor * recorded_row(report, thoughts.TASK, way)[key]


def computed_of_chain(report: Any) -> float:
    """Percent of the text that could move, which is computed where the last two pieces are."""
    return 100 - 100 * of_chain("last two pieces", "moved_share")(report)
