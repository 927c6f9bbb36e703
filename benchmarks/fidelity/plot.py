"""Draws `bench fidelity`: KL of each way to serve an edit, along a chain of edits, and along the continuation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure

DEPENDENCES = {"unrelated": "#2ca02c", "related": "#1f77b4", "superseded": "#d62728"}
TITLES = {
    "unrelated": "unrelated to the fold",
    "related": "goes on from the fold",
    "superseded": "updates of folded lines",
}
# The other ways lie between these, or far above.
LINES = {
    "reuse": "#d62728",
    "repair head 128": "#ff7f0e",
    "repair head 128 + echoes": "#bcbd22",
    "auto": "#2ca02c",
    "unedited": "#7f7f7f",
    "other marker": "#9467bd",
}
_NAME_DISTANCE = 1.45
_LEAST_KL = 1e-5


def draw(report: Mapping[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG; returns why there is none, or None. Models that are refused have nothing to draw."""
    models = [model for model in report["models"] if not model["refusal"]]
    if not models:
        return "no plot: the engine moves no KV of these models"
    figure = open_figure(15, 6.2 * len(models))
    if figure is None:
        return MISSING
    grid = figure.add_gridspec(2 * len(models), 2, width_ratios=[1.35, 1])
    for number, model in enumerate(models):
        _draw_variants(figure.add_subplot(grid[2 * number : 2 * number + 2, 0]), model)
        _draw_chains(figure.add_subplot(grid[2 * number, 1]), model)
        _draw_positions(figure.add_subplot(grid[2 * number + 1, 1]), model)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    told = ", ".join(f"{m['name']}: {m['num_cases']} cases, {m['num_documents']} documents" for m in models)
    figure.suptitle(
        f"How far an answer is from the exact one after an edit ({told})\n"
        f"KL of the exact distribution from the served one, per token of the true continuation; bars: 95 % interval\n"
        f"{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None


def _draw_variants(axis: Any, model: Mapping[str, Any]) -> None:
    """One line for each way, three points on it: what text it was."""
    rows = model["summary"]["by_dependence"]
    names = [name for name in model["variants"] if any(row["variant"] == name for row in rows)]
    for offset, (dependence, color) in zip((0.2, 0.0, -0.2), DEPENDENCES.items(), strict=True):
        held = [row for row in rows if row["dependence"] == dependence]
        for row in held:
            at, kl = len(names) - 1 - names.index(row["variant"]) + offset, max(row["kl"], _LEAST_KL)
            low, high = row["kl_interval"] or (kl, kl)
            axis.plot([max(low, _LEAST_KL), max(high, _LEAST_KL)], [at, at], color=color, linewidth=2, alpha=0.6)
            axis.plot([kl], [at], marker="o", color=color)
        if held:
            axis.plot([], [], marker="o", color=color, label=f"{TITLES[dependence]} (n = {held[0]['n']})")
    axis.set_yticks(range(len(names)), names[::-1])
    axis.set(
        xscale="log", xlabel="KL, nats per token (log scale)", title=f"{model['name']}: every way to serve an edit"
    )
    axis.grid(axis="x", color="#e5e5e5")
    axis.legend(frameon=False, loc="lower left")


def _draw_chains(axis: Any, model: Mapping[str, Any]) -> None:
    rows = model["summary"]["chains"]
    _draw_lines(axis, rows, model["variants"], lambda row: row["num_edits"])
    axis.set_xticks(sorted({row["num_edits"] for row in rows}))
    axis.set(
        xlabel="edits in a row", ylabel="KL, nats per token", title="chains: a sliding window, folded again and again"
    )


def _draw_positions(axis: Any, model: Mapping[str, Any]) -> None:
    rows = model["summary"]["by_position"]
    ends = sorted({(row["from"], row["to"]) for row in rows})
    _draw_lines(axis, rows, model["variants"], lambda row: ends.index((row["from"], row["to"])))
    axis.set_xticks(range(len(ends)), [f"{start} to {end - 1}" for start, end in ends])
    axis.set(xlabel="tokens behind the prompt", ylabel="KL, nats per token", title="along the continuation, all edits")


def _draw_lines(axis: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str], at: Any) -> None:
    """A line for each way of `LINES`, named at its end; names that would lie on each other are pushed apart."""
    ends = []
    for name, color in LINES.items():
        held = [row for row in rows if row["variant"] == name and name in names]
        if held:
            kls = [max(row["kl"], _LEAST_KL) for row in held]
            axis.plot([at(row) for row in held], kls, marker="o", markersize=4, color=color)
            ends.append((kls[-1], name, color, at(held[-1])))
    floor = 0.0
    for kl, name, color, last in sorted(ends):
        floor = max(kl, floor * _NAME_DISTANCE)
        axis.annotate(name, (last, floor), (6, 0), "data", "offset points", color=color, va="center", fontsize="small")
    axis.set(yscale="log")
    axis.margins(x=0.05)
