"""Draws the courses of `bench map`: iterations, the first prompt of each question, and computed tokens in the end."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

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
    """Write a PNG; returns why there is none, or None."""
    figure = open_figure(15, 5)
    if figure is None:
        return MISSING
    steps, computed, totals = figure.subplots(1, 3, width_ratios=[1, 1.15, 1.35])
    _draw_steps(steps, report)
    _draw_computed(computed, report)
    _draw_totals(totals, report)
    for axis in (steps, computed, totals):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("question")
        axis.set_xticks(range(2, len(report["questions"]) + 1, 2))
    figure.suptitle(
        f"{len(report['questions'])} questions about one corpus, in one conversation: a context map learns from "
        f"the first {report['map']['evolve_steps']} and is frozen then.\n"
        "The agent is scripted: tokens are measured, not wits. What the updates themselves take is not drawn.\n"
        f"{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None


def _draw_steps(axis: Any, report: dict[str, Any]) -> None:
    """The agent takes the same steps whatever the fidelity: one line without a map, one with it."""
    for placed, color, label in ((False, "#7f7f7f", "without a map"), (True, "#2ca02c", "with a map")):
        rows = [row for row in report["courses"] if (row["placement"] is not None) == placed]
        if rows:
            steps = rows[0]["questions"]["iterations"]
            axis.step(range(1, len(steps) + 1), steps, where="mid", color=color, linewidth=2)
            axis.text(len(steps), steps[-1] + 0.12, f"{label}: {sum(steps)} in all", color=color, ha="right")
    axis.set(ylim=(0, 6), ylabel="completions", title="iterations of the agent")


def _draw_computed(axis: Any, report: dict[str, Any]) -> None:
    """What the first prompt of each question costs: an update shows here, whatever the agent does afterwards."""
    for row in report["courses"]:
        if row["placement"] is not None:
            computed = row["questions"]["first_computed_tokens"]
            axis.plot(
                range(2, len(computed) + 1),
                computed[1:],
                color=COLORS[row["name"]],
                marker="o",
                markersize=4,
                label=row["title"],
            )
    axis.axvspan(1.5, report["map"]["evolve_steps"] + 1.5, color="#f0f0f0", zorder=0)
    axis.legend(frameon=False, title="shaded: behind an update")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(ylim=(0, None), ylabel="tokens", title="computed for the first prompt, from the second question on")


def _draw_totals(axis: Any, report: dict[str, Any]) -> None:
    """Computed tokens summed up over the questions, each line named at its end."""
    ends = []
    for row in report["courses"]:
        total = list(accumulate(row["questions"]["computed_tokens"]))
        axis.plot(range(1, len(total) + 1), total, color=COLORS[row["name"]], linewidth=2)
        ends.append((total[-1], row["title"], COLORS[row["name"]]))
    if not ends:
        return
    num, gap = len(report["questions"]), max(end for end, _, _ in ends) * 0.055
    at = -gap
    for end, title, color in sorted(ends):
        at = max(at + gap, end)
        axis.text(num + 0.4, at, f"{title}: {end:,}", color=color, va="center")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlim=(0.5, num * 1.75), ylim=(0, None), ylabel="tokens", title="computed tokens, summed up")
