"""What pytest-benchmark wrote, as the rows that reports and pages read. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.agent.text_table import text_table

_TIMES = ("median_ms", "least_ms", "worst_ms")
_HIDDEN = ("benchmark", "side", "num_bytes", "digest", "limit_ms", *_TIMES)


def as_rows(benchmarks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row for each benchmark. Several runs of one are one row. `extra_info` says what it was."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for one in benchmarks:
        runs.setdefault(one["fullname"], []).append(one)
    rows = [_row(some) for some in runs.values()]
    return {"rows": _beside_memcpy(rows), **_steps(rows)}


def _row(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    stats = [run["stats"] for run in runs]
    times = {
        "median_ms": statistics.median(one["median"] for one in stats),
        "least_ms": min(one["min"] for one in stats),
        "worst_ms": max(one["max"] for one in stats),
    }
    row = dict(runs[-1]["extra_info"]) | {name: round(1e3 * value, 4) for name, value in times.items()}
    if len(runs) > 1:
        row["medians_us"] = [round(1e6 * one["median"], 2) for one in stats]
    return row


def _beside_memcpy(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every move with the memcpy of its group."""
    found = []
    memcpy = {_place(row): row["median_ms"] for row in rows if row.get("side") == "memcpy"}
    for row in rows:
        if row.get("side") == "memcpy":
            continue
        merged = dict(row)
        if row.get("side") == "move":
            other = memcpy[_place(row)]
            merged |= {"move_ms": row["median_ms"], "memcpy_ms": other, "ratio": round(other / row["median_ms"], 3)}
            merged["move_gb_s"] = round(row["num_bytes"] / row["median_ms"] / 1e6, 2)
        found.append(merged)
    return found


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("kv", "what", "num_threads"))


def _steps(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Microseconds of a step by scheduler, and what acmserve's own code is of them."""
    steps = {row["name"]: row for row in rows if row["benchmark"] == "step"}
    if not steps:
        return {}
    medians = {name: round(1e3 * row["median_ms"], 2) for name, row in steps.items()}
    own = 100 * (medians["acmserve"] - medians["connector"]) / medians["stock"]
    runs = {name: row["medians_us"] for name, row in steps.items()}
    return {"median_us": medians, "runs_us": runs, "own_percent": round(own, 2)}


def micro_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for each file, and what took longer than its limit."""
    lines: list[str] = []
    for benchmark in dict.fromkeys(row["benchmark"] for row in rows):
        some = [row for row in rows if row["benchmark"] == benchmark]
        names = [name for name, value in some[0].items() if name not in _HIDDEN and not isinstance(value, list)]
        cells = [[str(row.get(name, "")) for name in names] for row in some]
        times = [[f"{row[name]:.3f}" for name in _TIMES] for row in some]
        lines += ["", *text_table([*names, *_TIMES], [[*a, *b] for a, b in zip(cells, times, strict=True)])]
        if limited := limited_rows(some):
            lines.append(f"{len(limited) - len(slow_rows(some))} of {len(limited)} medians within their limits")
    return lines


def limited_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that have a limit."""
    return [row for row in rows if row.get("limit_ms") is not None]


def slow_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those whose median is above their limit."""
    return [row for row in limited_rows(rows) if row["median_ms"] > row["limit_ms"]]
