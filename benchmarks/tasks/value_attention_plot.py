"""Draws value-specific attention: each key before and after the fold, and where an answer looks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.tasks.value_attention import EXACT, FULL, MOVED, TITLES

_COLORS = {FULL: "#7f7f7f", EXACT: "#1f77b4", MOVED: "#d62728"}


def draw(report: Mapping[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG; returns why there is none, or None."""
    figure = open_figure(14, 6)
    if figure is None:
        return MISSING
    left, right = figure.subplots(1, 2)
    _draw_keys(left, report)
    _draw_places(right, report)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"Attention to values, {report['model']}: {len(report['keys'])} keys with updates, "
        f"{report['full_tokens']:,} tokens, {report['folded_context_tokens']:,} once the stale rounds are folded\n"
        f"Mean over layers and heads. {machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None


def _draw_keys(axis: Any, report: Mapping[str, Any]) -> None:
    """A point a key: above the line, the fold has drawn attention to the value."""
    for name in (EXACT, MOVED):
        row = next(row for row in report["summary"] if row["condition"] == name)
        points = [(1000 * key[FULL]["echo"], 1000 * key[name]["echo"]) for key in report["keys"]]
        label = f"{TITLES[name]}: {row['num_gain']} of {len(points)} keys gain, {row['echo_gain']:+.0%} on average"
        axis.scatter([x for x, _ in points], [y for _, y in points], color=_COLORS[name], alpha=0.7, label=label)
    most = 1000 * max(key[name]["echo"] for key in report["keys"] for name in (FULL, EXACT, MOVED))
    axis.plot([0, most], [0, most], color="black", linewidth=0.8, linestyle="--")
    axis.set(
        xlabel="attention with the full context, thousandths",
        ylabel="attention after the fold, thousandths",
        title="from the value as it is said to the same value in the context",
    )
    axis.legend(frameon=False, loc="upper left")


def _draw_places(axis: Any, report: Mapping[str, Any]) -> None:
    """Where the token in front of the answer looks: dots are keys, bars their mean."""
    for group, measure in enumerate(("latest", "stale")):
        for number, name in enumerate((FULL, EXACT, MOVED)):
            values = [1000 * key[name][measure] for key in report["keys"]]
            at = group + (number - 1) * 0.27
            label = TITLES[name] if group == 0 else None
            axis.bar(at, statistics.fmean(values), 0.24, color=_COLORS[name], alpha=0.75, label=label)
            spread = [at + 0.16 * (index / len(values) - 0.5) for index in range(len(values))]
            axis.plot(spread, values, ".", color="#333333", markersize=3, alpha=0.6)
    axis.set_xticks(range(2), ["the value that counts", "stale values of the key, summed up"])
    axis.set(ylabel="attention, thousandths", title="from the token in front of the answer to")
    axis.legend(frameon=False, loc="upper right")
