"""What a task can show of ways on one model, and how ways compare where it shows something. Pure numbers.

    no way is right in more than `FLOOR`                              nothing
    the interval of the whole context goes below `FLOOR`, or a guess  a gain alone: no way loses what is not there
    it lies above both                                                a loss and a gain

It reads the rows of a summary, so it takes any report of `acmserve eval`. The whole context is that of a way's own
baseline: one message, or results of tools for budgets.

Decision: a way is compared over all tasks where it can lose together. Over all tasks the zeros of the others would make
any loss small, and its interval narrow. A report has no single samples, so the intervals of tasks are put together by
their distances from the means. The method is MOVER (Zou and Donner, Statistics in Medicine 27, 2008).

Decision: a way that was over its budget in most samples of a task is not named best. It had more to answer from than a
budget leaves. It may be named worst. Ways that came to the same tokens and scores in every task count as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.eval.summary import ALL, FLOOR, at_the_floor
from acmserve.bench.eval.tasks.registry import find_task
from acmserve.bench.eval.ways import BY_TOOLS, TAKING_OUT, find_way

WHOLE, READS = "baseline", "reads"
"""The ways that have the whole context. What takes something away is compared with one of them."""
NOTHING, GAIN, LOSS = "nothing", "a gain", "a loss, a gain"
Row = Mapping[str, Any]
_OF_A_WAY = ("task", "num_samples", "prompt_tokens", "kept_tokens", "moved_tokens", "output_tokens", "update_tokens")
"""What two ways have in common that are alike, beside their scores. What is neither kept nor moved is computed."""


@dataclass(frozen=True, slots=True)
class WayDifference:
    """How a way differs from its baseline over some tasks, in shares. `interval` is None where a task has none.

    `num_contexts` is None in reports that do not know them.
    """

    way: str
    num_samples: int
    difference: float
    interval: tuple[float, float] | None
    num_contexts: int | None = None


def shown_by_task(rows: Sequence[Row]) -> dict[str, str]:
    """What each task can show, in order: `NOTHING`, `GAIN` or `LOSS`."""
    at_floor, losing = at_the_floor(rows), {task for task, _ in _can_lose(rows)}
    tasks = [task for task in dict.fromkeys(row["task"] for row in rows) if task != ALL]
    return {task: NOTHING if task in at_floor else LOSS if task in losing else GAIN for task in tasks}


def rows_of_all(rows: Sequence[Row]) -> list[Row]:
    """One row for each way: over all its tasks, or of the only task."""
    has_several = any(row["task"] == ALL for row in rows)
    return [row for row in rows if not has_several or row["task"] == ALL]


def differences_of(rows: Sequence[Row]) -> list[WayDifference]:
    """Each way that edited something, beside its baseline: over all tasks, or in the only one of the rows."""
    return [
        WayDifference(
            *(row["way"], row["num_samples"], row["difference"], _pair(row["difference_interval"])),
            num_contexts=row.get("num_contexts"),
        )
        for row in rows_of_all(rows)
        if row["way"] not in (WHOLE, READS) and row["difference"] is not None and not is_idle(row)
    ]


def removals_of(rows: Sequence[Row]) -> list[WayDifference]:
    """The same of acmserve's own ways that took text out."""
    return [one for one in differences_of(rows) if one.way in TAKING_OUT]


def is_idle(row: Row) -> bool:
    """Whether the model was to edit, and did not."""
    return row["way"] in BY_TOOLS and not row["tools"]


def compare_ways(rows: Sequence[Row]) -> list[WayDifference]:
    """The same over the tasks where the way can lose."""
    losing = _can_lose(rows)
    found: dict[str, list[WayDifference]] = {}
    for task in dict.fromkeys(row["task"] for row in rows if row["task"] != ALL):
        for one in differences_of([row for row in rows if row["task"] == task]):
            if (task, find_way(one.way).baseline) in losing:
                found.setdefault(one.way, []).append(one)
    return [_joined(some) for some in found.values()]


def alike_ways(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Ways with the same tokens and scores in every task, two or more together, in order. Baselines are not told."""
    found: dict[str, list[str]] = {}
    for way in dict.fromkeys(row["way"] for row in rows if row["way"] not in (WHOLE, READS)):
        told = [[row.get(name) for name in (*_OF_A_WAY, "score")] for row in rows if row["way"] == way]
        found.setdefault(repr(told), []).append(way)
    return [tuple(ways) for ways in found.values() if len(ways) > 1]


def told_apart(ways: Sequence[WayDifference], rows: Sequence[Row]) -> list[WayDifference]:
    """The first alone of ways that are alike in these rows."""
    again = {way for alike in alike_ways(rows) for way in alike[1:]}
    return [one for one in ways if one.way not in again]


def over_budget(rows: Sequence[Row]) -> list[str]:
    """Ways that were over their budget in more than half of the samples of one of these rows, in order."""
    return list(dict.fromkeys(row["way"] for row in rows if 2 * row["num_unmet"] > row["num_samples"]))


def within_budget(ways: Sequence[WayDifference], rows: Sequence[Row]) -> list[WayDifference]:
    """Those that may be named best."""
    over = set(over_budget(rows))
    return [one for one in ways if one.way not in over]


def best_of(differences: Sequence[WayDifference], *, least: float = -math.inf) -> WayDifference | None:
    """The one that gains most, of those with an interval. None where none gains more than `least`."""
    known = (one for one in differences if one.interval and one.difference > least)
    return max(known, key=lambda one: one.difference, default=None)


def worst_of(differences: Sequence[WayDifference], *, most: float = math.inf) -> WayDifference | None:
    """The one that loses most, of those with an interval. None where none has less than `most`."""
    known = (one for one in differences if one.interval and one.difference < most)
    return min(known, key=lambda one: one.difference, default=None)


def computed_beside_baseline(rows: Sequence[Row], way: str) -> float | None:
    """How many times as many tokens a way computes as its baseline, for as many samples of the same tasks.

    What updates and summaries read counts as computed.
    """
    return _beside_baseline(rows, way, lambda row: row["computed_tokens"] + (row["update_tokens"] or (0, 0))[0])


def cost_beside_baseline(rows: Sequence[Row], way: str) -> float | None:
    """The same of the cost."""
    return _beside_baseline(rows, way, lambda row: row["cost"])


def _can_lose(rows: Sequence[Row]) -> set[tuple[str, str]]:
    """Task and way of the whole context, where that is right more often than a guess, and than the floor."""
    return {
        (row["task"], row["way"])
        for row in rows
        if row["way"] in (WHOLE, READS)
        and row["task"] != ALL
        and row["score_interval"][0] > max(FLOOR, find_task(row["task"]).guess)
    }


def _pair(interval: Sequence[float] | None) -> tuple[float, float] | None:
    return None if interval is None else (interval[0], interval[1])


def _joined(parts: Sequence[WayDifference]) -> WayDifference:
    """Of one way over several tasks, by their samples."""
    way, total = parts[0].way, sum(one.num_samples for one in parts)
    mean = sum(one.num_samples * one.difference for one in parts) / total
    contexts = [one.num_contexts for one in parts if one.num_contexts is not None]
    num_contexts = sum(contexts) if len(contexts) == len(parts) else None
    if any(one.interval is None for one in parts):
        return WayDifference(way, total, mean, None, num_contexts)
    below, above = (
        math.hypot(*(one.num_samples * (one.interval[edge] - one.difference) for one in parts if one.interval)) / total
        for edge in (0, 1)
    )
    return WayDifference(way, total, mean, (mean - below, mean + above), num_contexts)


def _beside_baseline(rows: Sequence[Row], way: str, amount: Callable[[Row], float]) -> float | None:
    baseline = find_way(way).baseline
    other = {row["task"]: amount(row) / row["num_samples"] for row in rows if row["way"] == baseline}
    mine = [row for row in rows if row["way"] == way and row["task"] != ALL and row["task"] in other]
    expected = sum(row["num_samples"] * other[row["task"]] for row in mine)
    return sum(map(amount, mine)) / expected if expected else None
