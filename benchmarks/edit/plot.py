"""Draws `bench edit`: time to first token by kind of edit."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure

STYLES = {
    "reuse": ("#2ca02c", "o", "acmserve, reuse (KV moved)"),
    "repair": ("#9467bd", "D", "acmserve, repair (moved, heads computed)"),
    "append": ("#1f77b4", "|", "plain append of as many new tokens (the floor)"),
    "exact": ("#ff7f0e", "s", "acmserve, exact"),
    "stock": ("#d62728", "X", "stock vLLM, prefix caching on"),
    "llamacpp": ("#8c564b", "^", "llama.cpp, --cache-reuse 256"),
}
_OTHER = ("#7f7f7f", "v")


def draw_cells(report: dict[str, Any], title: str, path: Path) -> str | None:
    """A panel for each size and position, a row for each kind, all on one scale. Returns why there is none, or None."""
    cells = report["cells"]
    sizes, positions, kinds = (
        list(dict.fromkeys(row[key] for row in cells)) for key in ("context_tokens", "position", "kind")
    )
    wide = 5.2 * len(positions) + 1.6 if len(positions) > 1 else 10.0
    figure = open_figure(wide, (0.34 * len(kinds) + 0.7) * len(sizes) + 1.5)
    if figure is None:
        return MISSING
    panels = figure.subplots(len(sizes), len(positions), squeeze=False, sharex=True, sharey=True)
    for panel_row, size in zip(panels, sizes, strict=True):
        for axis, position in zip(panel_row, positions, strict=True):
            rows = [row for row in cells if (row["context_tokens"], row["position"]) == (size, position)]
            _draw_panel(axis, rows, kinds, report["series"])
            axis.set_title(f"{size:,} tokens of context, edit in the {position}", fontsize="medium")
    for axis in panels.flat:
        _logarithmic(axis)
    for axis in panels[-1]:
        axis.set_xlabel("time to first token (seconds, logarithmic)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    figure.suptitle(f"The turn after an edit: medians, with the range of the repetitions\n{title}", fontsize="small")
    figure.savefig(path, dpi=110)
    return None


def _draw_panel(axis: Any, rows: list[dict[str, Any]], kinds: list[str], series: list[str]) -> None:
    """Dots for medians and a line for the range; a red cell has none and says so."""
    for index, name in enumerate(series):
        color, marker, label = STYLES.get(name, (*_OTHER, name))
        offset = 0.7 / len(series) * (index - (len(series) - 1) / 2)
        timed = [(kinds.index(row["kind"]), row["seconds_to_first_token"]) for row in rows]
        drawn = [(at + offset, seconds[name]) for at, seconds in timed if name in seconds]
        for at, seconds in drawn:
            axis.plot([min(seconds), max(seconds)], [at, at], color=color, linewidth=1.2, alpha=0.6)
        medians, heights = [statistics.median(seconds) for _, seconds in drawn], [at for at, _ in drawn]
        width = 2.5 if marker == "|" else 1.0
        axis.plot(medians, heights, marker, color=color, markersize=7, markeredgewidth=width, label=label)
    for row in rows:
        if not row["green"]:
            place = (0.02, kinds.index(row["kind"]))
            axis.annotate("gate red: no time", place, xycoords=("axes fraction", "data"), va="center")
    axis.set_yticks(range(len(kinds)), kinds)
    axis.set_ylim(len(kinds) - 0.5, -0.5)
    for odd in range(1, len(kinds), 2):
        axis.axhspan(odd - 0.5, odd + 0.5, color="#f4f4f4", zorder=0)
    axis.set_axisbelow(True)


def _logarithmic(axis: Any) -> None:
    """A logarithmic scale with its numbers at 1, 2 and 5 of each decade."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
    axis.minorticks_off()
    axis.set_xticks([tick for tick in ticks if low <= tick <= high])
    axis.set_xlim(low, high)
    axis.xaxis.set_major_formatter("{x:,g}")
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
