"""Draws the rows of `gpu_move`: time over moved tokens, one panel per model. Needs matplotlib; measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

CURVES = {"prefill_ms": "prefill again", "move_ms": "move", "copy_ms": "device copy of the same bytes"}


def draw(rows: Sequence[dict[str, Any]], title: str, path: Path) -> str | None:
    """Write a PNG; returns why there is none, or None."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # type: ignore[import-not-found,unused-ignore]
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return "no plot: matplotlib is not installed (pip install matplotlib); the JSON file holds the numbers"
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(4.2 * len(models), 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axis, model in zip(axes, models, strict=True):
        mine = [row for row in rows if row["model"] == model]
        for key, label in CURVES.items():
            points = [(row["num_tokens"], row[key]) for row in mine if row[key] is not None]
            if points:
                axis.loglog(*zip(*points, strict=True), marker="o", label=label, base=2)
        axis.set(title=model, xlabel="tokens")
        axis.set_yscale("log", base=10)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("milliseconds")
    axes[0].legend()
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=150)
    return None
