"""What a recorded `bench repairs` comes to by today's floor, out of its records. Pure numbers.

An older file has a summary that averaged all kinds of question, also those that exact does not answer. Its records have
every answer, so the page is made of these. A report without records is told by its summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from acmserve.bench.repairs import summary
from acmserve.bench.repairs.cases import PRECISE, TIMES_PRECISE
from acmserve.bench.repairs.summary import ANY, MIX, SEED, mix_end, mix_of, row_of
from acmserve.bench.tasks.floor import Record, above_floor, answerable, kinds_at_floor

Report = Mapping[str, Any]


def recorded_row(report: Report, task: str, way: str, role: str = ANY) -> dict[str, Any]:
    """The row of one family, way and kind of question."""
    if not report.get("records"):
        (row,) = (row for row in report["summary"] if (row["task"], row["way"], row["role"]) == (task, way, role))
        return dict(row)
    kept = above_floor(report["records"])
    held = recorded_mix(report) if task == MIX else [record for record in kept if record["task"] == task]
    return row_of(task, held, way, role, SEED, kinds_at_floor(kept))


def recorded_mix(report: Report) -> list[Record]:
    """As many cases of each family."""
    kept = above_floor(report["records"])
    return mix_of(kept, mix_end(kept))


def recorded_kinds(report: Report) -> dict[str, float]:
    """Kinds of question that are out of means over all kinds, with what exact answers right of them."""
    return kinds_at_floor(above_floor(report.get("records", ())))


def recorded_harm(report: Report) -> dict[str, Any]:
    """How often `auto` is worse than `reuse`."""
    return summary.harm(answerable(report["records"])) if report.get("records") else dict(report["harm"])


def unfinished(report: Report) -> dict[str, tuple[int, int]]:
    """Of each family with fewer cases than were planned: how many were run, and planned. Empty for a whole run.

    An older file has no plan. There `PRECISE` was to have `TIMES_PRECISE` times as many cases as any other family.
    """
    run = Counter(record["task"] for record in report.get("records", ()))
    most = max((number for task, number in run.items() if task not in PRECISE), default=0)
    planned = report.get("planned") or {task: most * (TIMES_PRECISE if task in PRECISE else 1) for task in run}
    return {task: (run[task], number) for task, number in planned.items() if run[task] < number}
