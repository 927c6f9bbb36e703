"""Draws `bench precompute`: the time to the first token of every turn, over the tokens that the turn brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.precompute.runs import EXACT, PREDICT, REUSE, STOCK, held
from acmserve.bench.precompute.turn_statistics import is_plain, new_tokens, on_line

GREY, RED, GREEN = "#9aa0a6", "#d62728", "#2ca02c"
_TITLES = {PREDICT: "exact, precomputed", EXACT: "exact", REUSE: "moved KV (reuse)", STOCK: "stock vLLM"}


def draw(report: dict[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG. Returns why there is none, or None."""
    runs = report["runs"]
    figure = open_figure(3.6 * len(runs) + 0.6, 4.6)
    if figure is None:
        return MISSING
    axes = figure.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
    for axis, run in zip(axes, runs, strict=True):
        _draw_run(axis, run)
    axes[0].set(ylabel="seconds to the first token", yscale="log")
    axes[0].yaxis.set_major_formatter("{x:g}")
    low, high = report["tool_seconds"]
    figure.suptitle(
        f"The turn after an eviction ({report['policy']}), {report['trace']['num_turns']} turns of one conversation "
        f"{held(report['policy'], report['max_tokens'])}; tools take {low:g} to {high:g} s\n"
        f"Each point is one turn. Lower is better; the nearer the coloured points lie to the grey ones, the less an "
        f"eviction costs.\n{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None


def _draw_run(axis: Any, run: dict[str, Any]) -> None:
    turns, evicted, precomputed = run["turns"], run["turns"]["evicted_tokens"], run["turns"]["precomputed_tokens"]
    numbers = range(1, len(turns["seconds"]))
    for color, size, label, chosen in (
        (GREY, 12, "plain append", [n for n in numbers if is_plain(turns, n)]),
        (RED, 34, "after an eviction", [n for n in numbers if evicted[n] and not precomputed[n]]),
        (GREEN, 34, "the same, precomputed", [n for n in numbers if evicted[n] and precomputed[n]]),
    ):
        new, seconds = [new_tokens(turns, n) for n in chosen], [turns["seconds"][n] for n in chosen]
        if chosen:
            axis.scatter(new, seconds, s=size, color=color, label=f"{label} ({len(chosen)})", alpha=0.85)
    if (line := run["append_line"]) is not None:
        xs = range(0, 2501, 50)  # Bent on a logarithmic scale.
        axis.plot(xs, [on_line(line, x) for x in xs], color=GREY, label="line through the appends")
    ratio = run["eviction_over_append"]
    more = "" if ratio is None else f"\nafter an eviction: {ratio['median']:.2f} x an append, p90 {ratio['p90']:.2f} x"
    axis.set_title(f"{_TITLES.get(run['name'], run['name'])}{more}", fontsize="medium")
    axis.set_xlabel("tokens that the turn brings")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize="small")
