"""Draws the rows of `bench sculptor`: context before and after, and what the tools made the engine compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure

GREY, BLUE, ORANGE, GREEN = "#b8b8b8", "#1f77b4", "#ff7f0e", "#2ca02c"


def draw(report: dict[str, Any], title: str, path: Path) -> str | None:
    """Write a PNG. Returns why there is none, or None."""
    rows = report["rows"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    figure = open_figure(4.8 * len(workloads), 4.2)
    if figure is None:
        return MISSING
    axes = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axis, workload in zip(axes, workloads, strict=True):
        mine = {row["fidelity"]: row for row in rows if row["workload"] == workload}
        some = next(iter(mine.values()))
        bars = [
            ("context\nbefore", some["tokens_before"], GREY),
            ("context\nafter", some["tokens_after"], GREY),
            ("tools cost,\nno cache", some["uncached_tokens"], ORANGE),
            *(
                (f"tools cost,\n{name}", row["computed_tokens"], BLUE if name == "exact" else GREEN)
                for name, row in mine.items()
            ),
        ]
        drawn = axis.bar([label for label, _, _ in bars], [n for _, n, _ in bars], color=[c for _, _, c in bars])
        axis.bar_label(drawn, [f"{n:,}" for _, n, _ in bars], fontsize="small")
        axis.set(title=f"{workload}: {some['num_tool_calls']} tool calls", ylabel="tokens")
        axis.tick_params(axis="x", labelsize="small")
        axis.margins(y=0.12)
    figure.suptitle(f"What context tools save, and the prefill they cause\n{title}", fontsize="small")
    figure.savefig(path, dpi=150)
    return None
