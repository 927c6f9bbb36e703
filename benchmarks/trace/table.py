"""The report of `bench trace`: JSON-ready rows, and the table that people read. No numbers where the gate is red."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.bench.harness.options import as_gate, red_gate
from acmserve.bench.harness.peer_servers import NO_PREFIX, OURS, STOCK
from acmserve.bench.trace.score import Cell, as_row, check_cell, check_exact, notes

_HEADS = ("turns/s", "prompt tok/s", "p50", "p90", "p99", "p50", "p90", "p99", "kept", "moved", "computed", "hits")
_WIDTHS = (9, 14, 9, 7, 7, 9, 7, 7, 11, 10, 11, 7)
_NAME = 25


def as_report(cells: Sequence[Cell], budget: int) -> dict[str, Any]:
    """The gate, what is only told, and one row for each cell."""
    failures = [failure for cell in cells for failure in check_cell(cell, budget)] + check_exact(cells)
    rows = [] if failures else [as_row(cell) for cell in cells]
    return {
        "gate": as_gate(failures),
        "notes": notes(cells),
        "rows": rows,
        "ratios": ratios(rows),
    }


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns a second of ours beside the naive and the stock server, at the same policy and concurrency."""
    found = []
    for row in rows:
        for other in rows:
            same = all(row[name] == other[name] for name in ("policy", "concurrency"))
            if same and row["server"] in OURS and other["server"] in (NO_PREFIX, STOCK):
                ratio = row["turns_per_second"]["median"] / other["turns_per_second"]["median"]
                named = {name: row[name] for name in ("policy", "concurrency", "server")}
                found.append(named | {"beside": other["server"], "throughput_ratio": round(ratio, 3)})
    return found


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    lines: list[str] = []
    rows = report["rows"]
    for policy, concurrency in dict.fromkeys((row["policy"], row["concurrency"]) for row in rows):
        some = [row for row in rows if (row["policy"], row["concurrency"]) == (policy, concurrency)]
        lines += ["", *_block(policy, concurrency, some)]
    lines.append("")
    lines += [
        f"{row['policy']}, {row['concurrency']} at a time: {row['server']} has {row['throughput_ratio']:.2f} x the "
        f"turns a second of {row['beside']}"
        for row in report["ratios"]
    ]
    return [*lines, *report["notes"], *_LEGEND]


_LEGEND = (
    "",
    "Times to first token in seconds, of all turns and of those in front of which the policy edited the conversation;",
    "summaries and updates of a memory are in them. Tokens are those of one repetition; -: the server does not tell.",
    "infinite cache: a prefix cache that never forgets. Moved tokens are not in it, so reuse may compute less.",
    "gate green: all turns answered, one count of tokens, no prompt above the budget, receipts add up, exact = stock",
)


def _block(policy: str, concurrency: int, rows: Sequence[dict[str, Any]]) -> list[str]:
    first = rows[0]
    forced = f", {first['num_forced']} of them under `recency` as well" if first["num_forced"] else ""
    asides = max(row["aside_tokens"] for row in rows)
    asked = f"; {asides:,} tokens read for summaries" if asides else ""
    span = sum(_WIDTHS[2:5]), sum(_WIDTHS[5:8])
    heads = "".join(f"{head:>{width}}" for head, width in zip(_HEADS, _WIDTHS, strict=True))
    above = " " * (_NAME + sum(_WIDTHS[:2])) + f"{'first token':>{span[0]}}{'after an edit':>{span[1]}}"
    best = first["best_computed_tokens"]
    share = 1 - best / first["prompt_tokens"]
    return [
        f"{policy}, {_sessions(concurrency)}: {first['num_turns']} turns, {first['num_edits']} edits{forced}{asked}",
        above,
        " " * _NAME + heads,
        *(_line(row) for row in rows),
        f"{'infinite cache':<{_NAME}}" + " " * sum(_WIDTHS[:10]) + f"{best:>{_WIDTHS[10]},}{share:>{_WIDTHS[11]}.0%}",
    ]


def _sessions(concurrency: int) -> str:
    return "one session" if concurrency == 1 else f"{concurrency} sessions at a time"


def _line(row: dict[str, Any]) -> str:
    cells = [
        f"{row['turns_per_second']['median']:.3f}",
        f"{row['prompt_tokens_per_second']['median']:,.0f}",
        *_times(row["first_token_seconds"]),
        *_times(row["first_token_seconds_after_edit"]),
        *(_count(row[name]) for name in ("kept_tokens", "moved_tokens", "computed_tokens")),
        "-" if row["hit_rate"] is None else f"{row['hit_rate']:.0%}",
    ]
    title = row["title"] if len(row["title"]) < _NAME else row["title"][: _NAME - 4] + "..."
    return f"{title:<{_NAME}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _times(told: dict[str, float] | None) -> list[str]:
    return ["-"] * 3 if told is None else [f"{told[name]:.2f}" for name in ("p50", "p90", "p99")]


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
