"""Percentiles and intervals, made in one way for every benchmark of conversations. Pure numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

_SEED = 23
_NUM_SAMPLES = 10_000
_NORMAL_95 = 1.959964
_Value = TypeVar("_Value")


def nearest_rank(ascending: Sequence[float], share: float) -> float:
    """A percentile by the nearest rank."""
    return ascending[max(1, math.ceil(share * len(ascending))) - 1]


def bootstrap_interval(
    values: Sequence[_Value], statistic: Callable[[Sequence[_Value]], float], num_samples: int = _NUM_SAMPLES
) -> list[float]:
    """The 95 % bootstrap interval of a statistic of one sample, always the same for the same sample.

    A value may be a pair, for what is compared pair by pair.
    """
    draw = random.Random(_SEED)
    found = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(num_samples))
    return [round(nearest_rank(found, share), 4) for share in (0.025, 0.975)]


def wilson(share: float, num: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was seen in `num` independent cases."""
    z = _NORMAL_95**2 / num
    middle, half = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    return max(0.0, (middle - half) / (1 + z)), min(1.0, (middle + half) / (1 + z))


def bounded_interval(values: Sequence[float], lowest: float, highest: float) -> list[float]:
    """The 95 % interval of a mean of values between two bounds, by Wilson. It has a width where all values agree, too.

    Values between the bounds vary no more than values at the bounds with their mean, which Wilson's interval is for.
    """
    share = (sum(values) / len(values) - lowest) / (highest - lowest)
    return [round(lowest + (highest - lowest) * edge, 4) for edge in wilson(share, len(values))]
