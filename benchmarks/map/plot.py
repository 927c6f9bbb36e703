"""Draws the runs of `bench map`: the first prompt of each question, and computed tokens in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acmserve.bench.agent.totals_plot import draw_totals
from acmserve.bench.harness.figure import MISSING, open_figure

COLORS = {
    "none-exact": "#7f7f7f",
    "none-reuse": "#8c564b",
    "exact": "#1f77b4",
    "reuse": "#2ca02c",
    "exact-head": "#d62728",
    "reuse-tail": "#9467bd",
}


def draw(report: dict[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG. Returns why there is none, or None."""
    figure = open_figure(12, 5)
    if figure is None:
        return MISSING
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.2])
    for row in report["runs"]:
        if row["placement"] is not None:
            computed = row["questions"]["first_computed_tokens"]
            numbers = range(2, len(computed) + 1)
            left.plot(numbers, computed[1:], color=COLORS[row["name"]], marker="o", markersize=4, label=row["title"])
    left.axvspan(1.5, report["map"]["evolve_steps"] + 1.5, color="#f0f0f0", zorder=0)
    left.legend(frameon=False, title="shaded: behind an update")
    left.yaxis.set_major_formatter("{x:,.0f}")
    left.set(ylim=(0, None), xlabel="question", ylabel="tokens", title="computed for the first prompt of a question")
    rows = [(row["title"], COLORS[row["name"]], row["questions"]["computed_tokens"]) for row in report["runs"]]
    draw_totals(right, rows)
    right.set_xlabel("question")
    figure.suptitle(
        f"{len(report['questions'])} questions about one corpus, in one conversation: a context map learns from "
        f"the first {report['map']['evolve_steps']} and is frozen then.\n"
        "The agent is scripted: tokens are measured, not wits. What the updates themselves take is not drawn.\n"
        f"{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None
