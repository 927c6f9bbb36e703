"""Draws a run of `bench learner`: the loss of each step, and what each model earns on held-out tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.learner.answers import FOLD, HIGHEST, KEEP, LOWEST

_PARTS = {FOLD: "tasks that need folds", KEEP: "tasks that need none"}
_COLOURS = {"untrained": "#b8b8b8", "right": "#2ca02c", "shuffled": "#ff7f0e"}


def draw(report: dict[str, Any], title: str, path: Path) -> str | None:
    """Write a PNG. Returns why there is none, or None."""
    figure = open_figure(9.6, 4.0)
    if figure is None:
        return MISSING
    losses, rewards = figure.subplots(1, 2)
    for row in report["rows"]:
        colour = _COLOURS[row["model"]]
        if row["losses"]:
            losses.plot(range(1, len(row["losses"]) + 1), row["losses"], color=colour, label=row["model"])
    losses.set(title="loss of a sampled token", xlabel="step of four rows", yscale="log")
    losses.legend()
    width = 0.8 / len(report["rows"])
    for place, row in enumerate(report["rows"]):
        some = [row["parts"][name] for name in _PARTS]
        low_high = [
            [one["reward"] - one["reward_interval"][0] for one in some],
            [one["reward_interval"][1] - one["reward"] for one in some],
        ]
        left = [part + (place - 1) * width for part in range(len(_PARTS))]
        means = [one["reward"] for one in some]
        colour = _COLOURS[row["model"]]
        rewards.errorbar(left, means, yerr=low_high, fmt="o", capsize=4, color=colour, label=row["model"])
    rewards.set(title="reward on held-out tasks, 95 %", ylim=(LOWEST - 0.1, HIGHEST + 0.1))
    rewards.set_xticks(range(len(_PARTS)), _PARTS.values())
    rewards.axhline(0, color="#dddddd", zorder=0)
    rewards.legend()
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=150)
    return None
