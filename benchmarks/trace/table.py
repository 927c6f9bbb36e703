"""The report of `bench trace`: JSON-ready rows, and the table that people read. No numbers where the gate is red."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.bench.agent.text_table import text_table
from acmserve.bench.harness.options import as_gate, red_gate
from acmserve.bench.harness.peer_servers import NO_PREFIX, OURS, STOCK
from acmserve.bench.trace.score import (
    NOT_COMPARED,
    ReplayCell,
    as_row,
    check_cell,
    compare_with_stock,
    prompt_notes,
)

_HEADS = ("", "turns/s", "p50", "p90", "p99", "edit p50", "p90", "p99", "kept", "moved", "computed", "hits")


def as_report(cells: Sequence[ReplayCell], budget: int) -> dict[str, Any]:
    """The gate, what is only noted, and one row for each cell."""
    num_compared, differing = compare_with_stock(cells)
    failures = [failure for cell in cells for failure in check_cell(cell, budget)] + differing
    rows = [] if failures else [as_row(cell) for cell in cells]
    return {
        "gate": as_gate(failures),
        "answers_compared_with_stock": num_compared,
        "notes": [*prompt_notes(cells), *([] if num_compared else [NOT_COMPARED])],
        "rows": rows,
        "ratios": ratios(rows),
    }


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns a second of ours over those of the naive and the stock server, at the same policy."""
    return [
        {
            "policy": row["policy"],
            "server": row["server"],
            "baseline": other["server"],
            "throughput_ratio": round(row["turns_per_second"]["median"] / other["turns_per_second"]["median"], 3),
        }
        for row in rows
        for other in rows
        if row["policy"] == other["policy"] and row["server"] in OURS and other["server"] in (NO_PREFIX, STOCK)
    ]


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read. Nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    lines: list[str] = []
    for policy in dict.fromkeys(row["policy"] for row in report["rows"]):
        some = [row for row in report["rows"] if row["policy"] == policy]
        first, best = some[0], some[0]["best_computed_tokens"]
        forced = f", {first['num_forced']} of them under `recency` as well" if first["num_forced"] else ""
        infinite = ["infinite cache", *["-"] * 9, f"{best:,}", f"{1 - best / first['prompt_tokens']:.0%}"]
        lines += [
            "",
            f"{policy}: {first['num_turns']} turns, {first['num_edits']} edits{forced}",
            *text_table(_HEADS, [*map(_cells, some), infinite]),
        ]
    lines.append("")
    lines += [
        f"{one['policy']}: {one['server']} has {one['throughput_ratio']:.2f} x the turns a second of {one['baseline']}"
        for one in report["ratios"]
    ]
    num_compared = report.get("answers_compared_with_stock")
    same = [f"{num_compared} answers of exact are stock's, token for token"] if num_compared else []
    return [*lines, *report["notes"], *same, *_LEGEND]


_LEGEND = (
    "",
    "Seconds to the first token, of all turns and of those in front of which the policy edited the conversation.",
    "Tokens are those of one repetition; -: the server does not tell. infinite cache: a prefix cache that never",
    "forgets. Moved tokens are not in it, so reuse may compute less.",
    "gate green: all turns answered, one count of tokens, no prompt above the budget, receipts add up",
)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["title"],
        f"{row['turns_per_second']['median']:.3f}",
        *_times(row["first_token_seconds"]),
        *_times(row["first_token_seconds_after_edit"]),
        *(_count(row[name]) for name in ("kept_tokens", "moved_tokens", "computed_tokens")),
        "-" if row["hit_rate"] is None else f"{row['hit_rate']:.0%}",
    ]


def _times(found: dict[str, float] | None) -> list[str]:
    return ["-"] * 3 if found is None else [f"{found[name]:.2f}" for name in ("p50", "p90", "p99")]


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
