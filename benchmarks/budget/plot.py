"""Draws the courses of `bench budget`: context and computed tokens over the turns, and what they come to in the end."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from acmserve.bench.harness.figure import MISSING, open_figure

CONTEXT, COMPUTED, MOVED, SUMMARY = "#c9ccd1", "#d62728", "#6baed6", "#9467bd"
COLORS = ("#7f7f7f", "#8c564b", "#9467bd", "#d62728", "#ff7f0e", "#2ca02c")


def draw(report: dict[str, Any], machine: str, path: Path) -> str | None:
    """Write a PNG; returns why there is none, or None."""
    courses, most = report["courses"], report["budget"]["max_tokens"]
    num_rows = (len(courses) + 2) // 3
    figure = open_figure(14, 3.1 * num_rows + 4.2)
    if figure is None:
        return MISSING
    grid = figure.add_gridspec(num_rows + 1, 3, height_ratios=[1] * num_rows + [1.25])
    for number, course in enumerate(courses):
        axis = figure.add_subplot(grid[number // 3, number % 3])
        _draw_course(axis, course, most)
    _draw_totals(figure.add_subplot(grid[num_rows, :]), report)
    turns, low = report["trace"]["num_turns"], report["budget"]["low_watermark"]
    figure.suptitle(
        f"One agent conversation of {turns} turns under a budget of {most:,} tokens, treated in {len(courses)} ways\n"
        f"Of each prompt (grey) the engine computed the red part; the rest was in the cache, or its KV was moved. "
        f"A batch evicts down to {low:,} tokens.\n{machine}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=110)
    return None


def _draw_course(axis: Any, course: dict[str, Any], most: int) -> None:
    """Context as an area, behind bars of what each prompt cost; one scale for all, so panels compare."""
    turns = course["turns"]
    numbers = range(1, len(turns["prompt_tokens"]) + 1)
    axis.fill_between(numbers, turns["prompt_tokens"], step="mid", color=CONTEXT, label="context")
    below = [0] * len(numbers)
    for name, color, label in (
        ("computed_tokens", COMPUTED, "computed"),
        ("moved_tokens", MOVED, "moved"),
        ("summary_tokens", SUMMARY, "for the summary"),
    ):
        if any(turns[name]):
            axis.bar(numbers, turns[name], width=1.0, bottom=below, color=color, label=label)
            below = [a + b for a, b in zip(below, turns[name], strict=True)]
    axis.legend(loc="upper left", ncols=3, fontsize="small", framealpha=1)
    axis.axhline(most, color="black", linewidth=0.8, linestyle="--")
    total = course["total_computed_tokens"] + course["summary_prompt_tokens"] + course["summary_completion_tokens"]
    axis.set_title(f"{course['title']}\n{course['num_evictions']} evictions, {total:,} computed", fontsize="medium")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlim=(0, len(numbers) + 1), ylim=(0, most * 1.3), xlabel="turn", ylabel="tokens")
    if course["max_prompt_tokens"] > most * 1.3:
        axis.text(
            len(numbers) * 0.97,
            most * 0.88,
            f"the context grows on, to {course['max_prompt_tokens']:,} tokens",
            ha="right",
            fontsize="small",
        )


def _draw_totals(axis: Any, report: dict[str, Any]) -> None:
    """Computed tokens summed up over the turns, each line named at its end."""
    ends = []
    for course, color in zip(report["courses"], COLORS, strict=False):
        turns = course["turns"]
        spent = [a + b for a, b in zip(turns["computed_tokens"], turns["summary_tokens"], strict=True)]
        total = list(accumulate(spent))
        axis.plot(range(1, len(total) + 1), total, color=color, linewidth=2)
        ends.append((total[-1], course["title"], color))
    num_turns, gap = report["trace"]["num_turns"], max(end for end, _, _ in ends) * 0.055
    at = -gap
    for end, title, color in sorted(ends):
        at = max(at + gap, end)
        axis.text(num_turns * 1.01, at, f"{title}: {end:,}", color=color, va="center", fontsize="medium")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlim=(0, num_turns * 1.26), ylim=(0, None), xlabel="turn", ylabel="tokens")
    axis.set_title("computed tokens, summed up over the turns (those of summarizing calls included)", fontsize="medium")
