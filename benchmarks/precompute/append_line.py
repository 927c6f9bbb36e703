"""What a plain append takes by the tokens it brings: a line through all appends of a run, robust against outliers.

    seconds = fixed + rate * new tokens      rate: the median slope of all pairs, fixed: the median rest (Theil-Sen)

A turn after an eviction is held against this line, not against the appends nearest in size: evictions follow large
turns, and there is hardly a plain append as large as the largest of them.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AppendLine:
    """Seconds to the first token of an append."""

    fixed_seconds: float
    seconds_per_token: float

    def seconds(self, num_new_tokens: float) -> float:
        """What an append of so many tokens takes."""
        return self.fixed_seconds + self.seconds_per_token * num_new_tokens


def fit_appends(num_new_tokens: Sequence[int], seconds: Sequence[float]) -> AppendLine | None:
    """The line through the appends of a run; None where they do not tell one."""
    points = list(zip(num_new_tokens, seconds, strict=True))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if a[0] != b[0]]
    if not slopes:
        return None
    rate = statistics.median(slopes)
    fixed = statistics.median(took - rate * num for num, took in points)
    return AppendLine(fixed, rate) if rate >= 0 and fixed > 0 else None
