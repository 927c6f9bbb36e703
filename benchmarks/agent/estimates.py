"""Percentiles and intervals, made in one way for every benchmark of conversations. Pure numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

_SEED = 23
_NUM_SAMPLES = 10_000


def nearest_rank(ascending: Sequence[float], share: float) -> float:
    """A percentile by the nearest rank."""
    return ascending[max(1, math.ceil(share * len(ascending))) - 1]


def bootstrap_interval(values: Sequence[float], statistic: Callable[[Sequence[float]], float]) -> list[float]:
    """The 95 % bootstrap interval of a statistic of one sample, always the same for the same sample."""
    draw = random.Random(_SEED)
    found = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(_NUM_SAMPLES))
    return [round(nearest_rank(found, share), 4) for share in (0.025, 0.975)]
