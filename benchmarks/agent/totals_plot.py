"""Draws totals that grow: one line for each run, named at its end with what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

_GAP = 0.055


def draw_totals(axis: Any, lines: Sequence[tuple[str, str, Sequence[int]]]) -> None:
    """`lines` are title, colour and the tokens of each turn. Names that would overlap are moved apart."""
    ends = []
    for title, color, tokens in lines:
        totals = list(accumulate(tokens))
        axis.plot(range(1, len(totals) + 1), totals, color=color, linewidth=2)
        ends.append((totals[-1], title, color))
    num, gap = max(len(tokens) for _, _, tokens in lines), _GAP * max(end for end, _, _ in ends)
    at = -gap
    for end, title, color in sorted(ends):
        at = max(at + gap, end)
        axis.text(num * 1.02, at, f"{title}: {end:,}", color=color, va="center")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlim=(0, num * 1.7), ylim=(0, None), ylabel="tokens", title="computed tokens, summed up")
