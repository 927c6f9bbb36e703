"""Draws the rows of `bench trace`: first token after an edit, and throughput, all servers in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.harness.peer_servers import EXACT, LLAMA_CPP, NO_PREFIX, REUSE, STOCK

_COLORS = {NO_PREFIX: "#b0b4ba", STOCK: "#6b7a8f", LLAMA_CPP: "#9467bd", EXACT: "#1f77b4", REUSE: "#2ca02c"}
_WIDTH = 0.8


def draw(report: dict[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG. Returns why there is none, or None."""
    figure = open_figure(13, 4.8)
    if figure is None:
        return MISSING
    left, right = figure.subplots(1, 2)
    times = {(row["server"], row["policy"]): row["first_token_seconds_after_edit"] for row in report["rows"]}
    rates = {(row["server"], row["policy"]): row["turns_per_second"] for row in report["rows"]}
    _draw_bars(left, report, {key: (found["p50"], found["p90"]) for key, found in times.items() if found})
    left.set(title="Time to first token after an edit: median, and p90 (line)", ylabel="seconds")
    _draw_bars(right, report, {key: (found["median"], found["max"]) for key, found in rates.items()})
    right.set(title="Throughput: median, and most (line)", ylabel="turns a second")
    left.legend(fontsize="small", ncols=2)
    trace, budget = report["trace"], report["budget"]["max_tokens"]
    figure.suptitle(
        f"{trace['title']}, budget {budget:,} tokens: the same prompts on every server\n{machine}", fontsize="medium"
    )
    figure.savefig(path, dpi=120)
    return None


def _draw_bars(axis: Any, report: dict[str, Any], values: dict[tuple[str, str], tuple[float, float]]) -> None:
    """One group for each policy, one bar for each server, with a line up to the second value."""
    titles = {row["server"]: row["title"] for row in report["rows"]}
    policies = list(dict.fromkeys(policy for _, policy in values))
    width = _WIDTH / len(titles)
    for number, (server, title) in enumerate(titles.items()):
        for group, policy in enumerate(policies):
            if (server, policy) in values:
                middle, most = values[server, policy]
                at = group + (number - (len(titles) - 1) / 2) * width
                axis.bar(at, middle, width * 0.94, color=_COLORS.get(server), label=None if group else title)
                axis.plot([at, at], [middle, most], color="black", linewidth=1)
                axis.text(at, most, f"{middle:.2f}", ha="center", va="bottom", fontsize="x-small")
    axis.set_xticks(range(len(policies)), policies)
    axis.margins(y=0.16)
