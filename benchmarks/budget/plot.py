"""Draws the runs of `bench budget`: context and computed tokens over the turns, and what they come to in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acmserve.bench.agent.totals_plot import draw_totals
from acmserve.bench.harness.figure import MISSING, open_figure

COLORS = ("#7f7f7f", "#8c564b", "#9467bd", "#d62728", "#ff7f0e", "#2ca02c")
_PARTS = (("computed_tokens", "#d62728"), ("moved_tokens", "#6baed6"), ("summary_tokens", "#9467bd"))


def draw(report: dict[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG. Returns why there is none, or None."""
    runs, most = report["runs"], report["budget"]["max_tokens"]
    figure = open_figure(14, 10.4)
    if figure is None:
        return MISSING
    grid = figure.add_gridspec(3, 3, height_ratios=[1, 1, 1.25])
    for number, run in enumerate(runs):
        _draw_run(figure.add_subplot(grid[number // 3, number % 3]), run, most)
    totals = [
        (run["title"], color, [a + b for a, b in zip(*_columns(run, "computed_tokens", "summary_tokens"), strict=True)])
        for run, color in zip(runs, COLORS, strict=True)
    ]
    draw_totals(figure.add_subplot(grid[2, :]), totals)
    turns, low = report["trace"]["num_turns"], report["budget"]["low_watermark"]
    figure.suptitle(
        f"One agent conversation of {turns} turns under a budget of {most:,} tokens, treated in {len(runs)} ways\n"
        f"Of each prompt (grey) the engine computed the red part; the blue one was moved, the violet one is summaries. "
        f"The rest was in the cache. A batch evicts down to {low:,} tokens.\n{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None


def _columns(run: dict[str, Any], *names: str) -> list[list[int]]:
    return [run["turns"][name] for name in names]


def _draw_run(axis: Any, run: dict[str, Any], most: int) -> None:
    """Context as an area, behind bars of what each prompt cost. One scale for all, so panels compare."""
    (prompts,) = _columns(run, "prompt_tokens")
    numbers = range(1, len(prompts) + 1)
    axis.fill_between(numbers, prompts, step="mid", color="#c9ccd1")
    below = [0] * len(prompts)
    for name, color in _PARTS:
        axis.bar(numbers, run["turns"][name], width=1.0, bottom=below, color=color)
        below = [a + b for a, b in zip(below, run["turns"][name], strict=True)]
    axis.axhline(most, color="black", linewidth=0.8, linestyle="--")
    largest = run["max_prompt_tokens"]
    axis.set_title(f"{run['title']}\n{run['num_evictions']} evictions, up to {largest:,} tokens", fontsize="medium")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlim=(0, len(prompts) + 1), ylim=(0, most * 1.3), xlabel="turn", ylabel="tokens")
