"""What the records of `bench tasks` come to: accuracy of each way with its interval, beside exact, and what was moved.

Records are of sizes above the floor (`floor.py`): where exact answers too seldom, no way can lose anything.

The unit is the case, not the question: questions about one context share its fate. So every case counts with the mean
of its questions, intervals are bootstraps over cases, and differences to exact are taken case by case. Where all cases
agree a bootstrap knows no doubt. There it is Wilson's interval, over cases too. Pure numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.agent.estimates import wilson
from acmserve.bench.tasks.cases import TASKS
from acmserve.bench.tasks.floor import Record, above_floor
from acmserve.bench.tasks.run import EXACT

ALL = "all"


def summarise(records: Sequence[Record], names: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """One row for each task and way, and for all tasks together. `names` are the ways in their order."""
    groups = [(task, [r for r in records if r["task"] == task]) for task in TASKS]
    return [row_of(task, held, name, seed) for task, held in [*groups, (ALL, list(records))] if held for name in names]


def recorded_row(report: Mapping[str, Any], task: str, name: str) -> dict[str, Any]:
    """The row of a recorded report, made of its records above the floor. An older summary has all records in it."""
    kept = above_floor(report["records"])
    return row_of(task, [record for record in kept if task in (ALL, record["task"])], name, report["seed"])


def row_of(task: str, records: Sequence[Record], name: str, seed: int) -> dict[str, Any]:
    """The row of one way. `where_moved` is of the cases in which it moved something. All others are as under exact."""
    right, exact = means(records, name, "right"), means(records, EXACT, "right")
    score = means(records, name, "score")
    moved = [number for number, record in enumerate(records) if record["variants"][name]["moved_tokens"]]
    where_moved = [right[number] - exact[number] for number in moved]
    return {
        "task": task,
        "variant": name,
        "num_cases": len(records),
        "num_questions": sum(len(r["variants"][name]["right"]) for r in records),
        "right": _rounded(statistics.fmean(right)),
        "right_interval": share_interval(right, seed),
        "score": _rounded(statistics.fmean(score)),
        "score_interval": share_interval(score, seed),
        "misled": _rounded(statistics.fmean(means(records, name, "misled"))),
        "right_beside_exact": _rounded(statistics.fmean(_less(right, exact))),
        "right_beside_exact_interval": difference_interval(_less(right, exact), seed),
        "num_moved_cases": len(moved),
        "where_moved_beside_exact": _rounded(statistics.fmean(where_moved)) if moved else None,
        "where_moved_beside_exact_interval": difference_interval(where_moved, seed),
        "score_beside_exact": _rounded(statistics.fmean(_less(score, means(records, EXACT, "score")))),
        "same_choice_as_exact": _rounded(statistics.fmean(_same(r, name) for r in records)),
        "moved_share": moved_share(records, [r["variants"][name] for r in records]),
    }


def moved_share(records: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> float:
    """Part of the tokens behind the folds whose KV was moved. `rows` say how each record was served.

    A move may begin a token earlier, where a marker ends as the hidden text did. That token does not count.
    """
    moved = [min(row["moved_tokens"], r["suffix_tokens"]) for r, row in zip(records, rows, strict=True)]
    return _rounded(sum(moved) / max(sum(r["suffix_tokens"] for r in records), 1))


def means(records: Sequence[Record], name: str, key: str) -> list[float]:
    """For each record the mean of `key` over its questions."""
    return [statistics.fmean(r["variants"][name][key]) for r in records]


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _same(record: Record, name: str) -> float:
    pairs = zip(record["variants"][name]["choices"], record["variants"][EXACT]["choices"], strict=True)
    return statistics.fmean(a == b for a, b in pairs)


def share_interval(values: Sequence[float], seed: int) -> list[float] | None:
    """95 % interval of a mean of values in [0, 1], one for each case. None without values."""
    if not values:
        return None
    if len(set(values)) == 1:
        return [_rounded(edge) for edge in wilson(values[0], len(values))]
    return difference_interval(values, seed)


def difference_interval(values: Sequence[float], seed: int) -> list[float] | None:
    """95 % bootstrap interval of a mean over cases. None for fewer than two."""
    # Imported late: it brings torch, which `--help` can do without.
    from acmserve.bench.fidelity.score import interval

    found = interval(values, [f"{number:06}" for number in range(len(values))], seed)
    return [_rounded(edge) for edge in found] if found else None


def _rounded(value: float) -> float:
    """Without a zero below zero."""
    return round(value, 4) + 0.0
