"""How long tools run and people wait between two requests of a coding agent, drawn from a published distribution.

    source        TraceLab: Characterizing Coding Agent Workloads for LLM Serving, arXiv 2606.30560
                  github.com/uw-syfi/TraceLab at 0b8a262b: 432,510 tool calls of 43 people, Claude Code and Codex
    all, people   printed there: `assets/session.png`, `session_timing_distribution.tex`
                  the shares below 1, 10 and 60 seconds: calls in `assets/tools.png`
    by kind       dots of `assets/tools.png`, read off its axis: no table of them is printed
                  five are quoted in `tool_category_distribution/README.md`, and were read there within 2 %

A draw is the inverse of the distribution at an evenly drawn share. Between two quantiles it is straight on a
logarithmic scale. Below the first and above the last nothing is published, so a draw there is that quantile. Pure.

Decision: benchmarks of precompute draw from a range. In a few milliseconds nothing is computed ahead, and nothing more
in an hour than in some seconds. What is out of the range is told with each result.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SOURCE = "TraceLab, arXiv 2606.30560"


@dataclass(frozen=True, slots=True)
class WaitDistribution:
    """`quantiles` are shares of all waits, and the seconds that so many of them take at most, both rising."""

    quantiles: tuple[tuple[float, float], ...]

    def seconds_at(self, share: float) -> float:
        """The quantile of a share: its inverse distribution."""
        shares = [known for known, _ in self.quantiles]
        index = bisect.bisect_left(shares, share)
        if index in (0, len(shares)):
            return self.quantiles[min(index, len(shares) - 1)][1]
        (low, fast), (high, slow) = self.quantiles[index - 1], self.quantiles[index]
        return fast * (slow / fast) ** ((share - low) / (high - low))

    def share_below(self, seconds: float) -> float:
        """The share of waits that take less. 0 below the first quantile and 1 above the last."""
        took = [known for _, known in self.quantiles]
        index = bisect.bisect_left(took, seconds)
        if index in (0, len(took)):
            return float(index > 0)
        (low, fast), (high, slow) = self.quantiles[index - 1], self.quantiles[index]
        return low + (high - low) * math.log(seconds / fast) / math.log(slow / fast)


ANY_TOOL = WaitDistribution(
    ((0.25, 0.058), (0.5, 0.285), (0.609, 1.0), (0.882, 10.0), (0.9, 13.6), (0.96, 60.0), (0.99, 216.0))
)
SHELL = WaitDistribution(((0.25, 0.11), (0.5, 0.85), (0.9, 22.0), (0.99, 235.0)))
FILE_EDIT = WaitDistribution(((0.25, 0.038), (0.5, 0.074), (0.9, 1.9), (0.99, 56.0)))
FILE_READ = WaitDistribution(((0.25, 0.015), (0.5, 0.043), (0.9, 0.47), (0.99, 7.3)))
PERSON = WaitDistribution(((0.25, 17.9), (0.5, 86.0), (0.9, 1236.0), (0.99, 50_040.0)))
"""Between an answer and what the person writes next, up to 13.9 hours."""
OF_TOOL = {"bash": SHELL, "edit": FILE_EDIT, "grep": FILE_READ, "read": FILE_READ}
"""The kinds of the scripted agent's tools. Others are `ANY_TOOL`."""
TOOL_SECONDS = (0.5, 5.0)
"""Of precompute: in less nothing can be computed ahead on a CPU, and after more it has ended."""
MOST_SECONDS = 60.0
"""Of a replayed conversation: a longer wait counts as this one. All that it tells is that a session was idle."""


def draw_waits(
    waits: Iterable[WaitDistribution], seed: int, between: tuple[float, float] = (0.0, math.inf)
) -> list[float]:
    """Seconds of each wait, of those that the source has in the range. Where it has none there, the nearer end."""
    draw, (least, most) = random.Random(seed), between
    found = []
    for wait in waits:
        low, high = wait.share_below(least), wait.share_below(most)
        found.append(min(most, max(least, wait.seconds_at(low + (high - low) * draw.random()))))
    return found


def describe_waits(between: tuple[float, float]) -> dict[str, Any]:
    """JSON-ready: the source of the pauses, and which of its tool calls are out of the range."""
    least, most = between
    shares = {"faster_share": ANY_TOOL.share_below(least), "slower_share": 1 - ANY_TOOL.share_below(most)}
    return {"source": SOURCE} | {name: round(share, 3) for name, share in shares.items()}
