"""Draws `bench ahead`: the time to the first token of every turn, over the tokens that the turn brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.precompute.append_line import AppendLine
from acmserve.bench.precompute.run import held
from acmserve.bench.precompute.table import new_tokens

PLAIN, EVICTED, PRECOMPUTED = "#9aa0a6", "#d62728", "#2ca02c"
_TITLES = {
    "exact, predict": "exact, computed ahead",
    "exact": "exact",
    "reuse": "moved KV (reuse)",
    "stock": "stock vLLM",
}


def draw(report: dict[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG; returns why there is none, or None."""
    courses = report["courses"]
    figure = open_figure(3.6 * len(courses) + 0.6, 4.6)
    if figure is None:
        return MISSING
    axes = figure.subplots(1, len(courses), sharex=True, sharey=True, squeeze=False)[0]
    for axis, course in zip(axes, courses, strict=True):
        _draw_course(axis, course)
    axes[0].set_ylabel("seconds to the first token")
    axes[0].set(yscale="log")
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


def _draw_course(axis: Any, course: dict[str, Any]) -> None:
    turns = course["turns"]
    numbers = range(1, len(turns["seconds"]))
    kinds: dict[str, list[int]] = {PLAIN: [], EVICTED: [], PRECOMPUTED: []}
    for n in numbers:
        if turns["evicted_tokens"][n]:
            kinds[PRECOMPUTED if turns["precomputed_tokens"][n] else EVICTED].append(n)
        elif turns["rests"][n]:
            kinds[PLAIN].append(n)
    labels = {PLAIN: "plain append", EVICTED: "after an eviction", PRECOMPUTED: "after an eviction, foreseen"}
    for color, chosen in kinds.items():
        if chosen:
            new = [new_tokens(turns, n) for n in chosen]
            seconds = [turns["seconds"][n] for n in chosen]
            size = 12 if color == PLAIN else 34
            axis.scatter(new, seconds, s=size, color=color, label=f"{labels[color]} ({len(chosen)})", alpha=0.85)
    if (line := course["append_line"]) is not None:
        xs = range(0, 2501, 50)
        appends = AppendLine(**line)
        axis.plot(xs, [appends.seconds(x) for x in xs], color=PLAIN, linewidth=1.2, label="line through the appends")
    ratio = course["eviction_over_append"]
    told = "" if ratio is None else f"\nafter an eviction: {ratio['median']:.2f} x an append, p90 {ratio['p90']:.2f} x"
    axis.set_title(f"{_TITLES.get(course['name'], course['name'])}{told}", fontsize="medium")
    axis.set_xlabel("tokens that the turn brings")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize="small")
