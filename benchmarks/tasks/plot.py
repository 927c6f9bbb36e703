"""Draws `bench tasks`: accuracy of every way on each task, and what is lost against what is moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.tasks.auto import MAX_LOSS, MIN_MOVED_SHARE
from acmserve.bench.tasks.run import AUTO, EXACT, FULL, REUSE
from acmserve.bench.tasks.summary import ALL

COLORS = {FULL: "#7f7f7f", EXACT: "#1f77b4", REUSE: "#d62728", AUTO: "#2ca02c"}
_OTHER_COLORS = ("#ff7f0e", "#9467bd", "#17becf", "#bcbd22", "#8c564b")


def draw(report: Mapping[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG. Returns why there is none, or None."""
    figure = open_figure(15, 10)
    if figure is None:
        return MISSING
    others = iter(_OTHER_COLORS)
    colors = {v["name"]: COLORS.get(v["name"]) or next(others) for v in report["variants"]}
    above, below = figure.add_gridspec(2, 1, height_ratios=[1, 1.05])
    sides = below.subgridspec(1, 2)
    left, right = (figure.add_subplot(side) for side in sides)
    axis = figure.add_subplot(above)
    _draw_tasks(axis, report, colors)
    _draw_trade(left, report, colors)
    _draw_front(right, report)
    for each in (axis, left, right):
        each.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"Tasks after a fold, {report['model']}: the answer is the most likely candidate "
        f"({report['num_cases']} cases, digest {report['digest']}; bars: 95 % interval over cases)\n{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None


def _draw_tasks(axis: Any, report: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    rows, names = report["summary"], [v["name"] for v in report["variants"]]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    width = 0.8 / len(names)
    for number, variant in enumerate(report["variants"]):
        held = [next(r for r in rows if (r["task"], r["variant"]) == (task, variant["name"])) for task in tasks]
        at = [place + (number - (len(names) - 1) / 2) * width for place in range(len(tasks))]
        values = [100 * row["right"] for row in held]
        edges = [row["right_interval"] or [row["right"]] * 2 for row in held]
        errors = [
            [max(value - 100 * low, 0) for value, (low, _) in zip(values, edges, strict=True)],
            [max(100 * high - value, 0) for value, (_, high) in zip(values, edges, strict=True)],
        ]
        color = colors[variant["name"]]
        axis.bar(at, values, width * 0.92, yerr=errors, color=color, label=variant["title"], ecolor="#444444")
    told = [f"{task}\n{_sizes(rows, task)}" for task in tasks]
    axis.set_xticks(range(len(tasks)), told)
    axis.set(ylim=(0, 120), ylabel="right answers, %", title="accuracy by task")
    axis.legend(frameon=False, ncols=-(-len(names) // 2), loc="upper center", columnspacing=1.2)


def _sizes(rows: Sequence[Mapping[str, Any]], task: str) -> str:
    row = next(row for row in rows if row["task"] == task)
    return f"{row['num_cases']} cases, {row['num_questions']} questions"


def _draw_trade(axis: Any, report: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    """Every way as a point: all tasks together."""
    _target(axis)
    for variant in report["variants"]:
        name = variant["name"]
        row = next(r for r in report["summary"] if (r["task"], r["variant"]) == (ALL, name))
        if name == FULL:
            continue
        moved, beside = 100 * row["moved_share"], 100 * row["right_beside_exact"]
        low, high = row["right_beside_exact_interval"] or (row["right_beside_exact"],) * 2
        axis.plot([moved, moved], [100 * low, 100 * high], color=colors[name], linewidth=2, alpha=0.5)
        axis.plot(moved, beside, marker="o", markersize=8, color=colors[name], linestyle="", label=variant["title"])
    axis.legend(frameon=False, loc="lower left")
    axis.set(
        xlim=(-3, 103),
        xlabel="tokens behind the fold whose KV was moved, %",
        ylabel="right answers beside exact, points",
        title="each way, all tasks together (dotted: what auto is asked for)",
    )


def _draw_front(axis: Any, report: Mapping[str, Any]) -> None:
    """The trade-off of `auto` over its thresholds, where they were chosen and where not."""
    _target(axis)
    auto = report["auto"]
    if auto is None or not auto["front"]:
        axis.text(0.5, 0.5, "no trade-off: nothing is moved, or half of the seeds is missing", ha="center")
        return
    for half, label, color, style in (
        ("fit", "seeds on which thresholds were chosen", "#9aa0a6", "--"),
        ("held_out", "held-out seeds", "#2ca02c", "-"),
    ):
        points = [(100 * p[half]["moved_share"], -100 * p[half]["loss"]) for p in auto["front"]]
        points.sort()
        axis.plot([x for x, _ in points], [y for _, y in points], style, marker=".", color=color, label=label)
    if auto["chosen"] is not None:
        told = auto["chosen"]["held_out"]
        axis.plot(100 * told["moved_share"], -100 * told["loss"], "*", markersize=15, color="#2ca02c", label="chosen")
        worst = [100 * told["moved_share"]], [-100 * told["worst_loss"]]
        axis.plot(*worst, "v", markersize=9, color="#2ca02c", label=f"its worst task ({told['worst_task']})")
    told = auto["product"]
    axis.plot(100 * told["moved_share"], -100 * told["loss"], "D", color="black", label="auto as it is, all seeds")
    axis.set(
        xlim=(-3, 103),
        xlabel="tokens behind the fold whose KV was moved, %",
        ylabel="right answers beside exact, points",
        title="auto over its thresholds",
    )
    axis.legend(frameon=False, loc="lower left")


def _target(axis: Any) -> None:
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axhline(-100 * MAX_LOSS, color="#666666", linewidth=0.8, linestyle=":")
    axis.axvline(100 * MIN_MOVED_SHARE, color="#666666", linewidth=0.8, linestyle=":")
