"""Draws the rows of `bench trace`: first token after an edit, and throughput, all servers beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.harness.peer_servers import EXACT, LLAMA_CPP, NO_PREFIX, REUSE, STOCK

_COLORS = {NO_PREFIX: "#b0b4ba", STOCK: "#6b7a8f", LLAMA_CPP: "#9467bd", EXACT: "#1f77b4", REUSE: "#2ca02c"}
_COLORS |= {"repair": "#8fd18f", "auto": "#17becf"}
_OTHERS = ("#ff7f0e", "#8c564b", "#e377c2", "#bcbd22")
_BAR = 0.8


def draw(report: dict[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG; returns why there is none, or None."""
    rows = report["rows"]
    concurrencies = list(dict.fromkeys(row["concurrency"] for row in rows))
    figure = open_figure(13, 3.6 * len(concurrencies) + 1.2)
    if figure is None:
        return MISSING
    panels = figure.subplots(len(concurrencies), 2, squeeze=False)
    for (left, right), concurrency in zip(panels, concurrencies, strict=True):
        some = [row for row in rows if row["concurrency"] == concurrency]
        many = "one session" if concurrency == 1 else f"{concurrency} sessions at a time"
        _draw_first_tokens(left, some)
        left.set(title=f"Time to first token after an edit, {many}: median, and p90 (line)", ylabel="seconds")
        _draw_rates(right, some)
        right.set(title=f"Throughput, {many}: median, min to max", ylabel="turns a second")
    panels[0][0].legend(fontsize="small", ncols=2)
    trace, budget = report["trace"], report["budget"]["max_tokens"]
    figure.suptitle(
        f"{trace['title']}, budget {budget:,} tokens: the same prompts on every server\n{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=120)
    return None


def _draw_first_tokens(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Bars of medians with a line up to p90. Without a policy there are no edits, so it has no bars."""
    edited = [row for row in rows if row["first_token_seconds_after_edit"] is not None]
    edited.sort(key=lambda row: _servers(rows).index(row["server"]))
    for at, width, row in _places(axis, edited):
        told = row["first_token_seconds_after_edit"]
        axis.bar(at, told["p50"], width, color=_color(row, rows), label=_label(row, edited))
        axis.plot([at, at], [told["p50"], told["p90"]], color="black", linewidth=1)
        axis.plot(at, told["p90"], marker="_", color="black", markersize=7)
        axis.text(
            at, told["p90"], f"{told['p50']:.2f}\n", ha="center", va="bottom", fontsize="x-small", linespacing=0.6
        )
    axis.margins(y=0.16)


def _draw_rates(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    for at, width, row in _places(axis, rows):
        told = row["turns_per_second"]
        axis.bar(at, told["median"], width, color=_color(row, rows))
        axis.plot([at, at], [told["min"], told["max"]], color="black", linewidth=1)
        axis.text(
            at, told["max"], f"{told['median']:.2f}\n", ha="center", va="bottom", fontsize="x-small", linespacing=0.6
        )
    axis.margins(y=0.16)


def _places(axis: Any, rows: Sequence[dict[str, Any]]) -> list[tuple[float, float, dict[str, Any]]]:
    """Where each bar stands: one group for each policy, named below it."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    servers = _servers(rows)
    axis.set_xticks(range(len(policies)), policies)
    width = _BAR / max(1, len(servers))
    return [
        (policies.index(row["policy"]) + (servers.index(row["server"]) + 0.5) * width - _BAR / 2, width * 0.92, row)
        for row in rows
    ]


def _servers(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Baselines first, ours last."""
    found = dict.fromkeys(row["server"] for row in rows)
    others = [name for name in found if name not in _COLORS]
    return [*others, *(name for name in _COLORS if name in found)]


def _color(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    name = row["server"]
    return _COLORS[name] if name in _COLORS else _OTHERS[_servers(rows).index(name) % len(_OTHERS)]


def _label(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str | None:
    """Each server once."""
    is_first = row["policy"] == next(one["policy"] for one in rows if one["server"] == row["server"])
    return row["title"] if is_first else None
