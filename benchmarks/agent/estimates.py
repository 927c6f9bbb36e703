"""Percentiles and intervals, made in one way for every benchmark of conversations. Pure numbers."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

_SEED = 23
_NUM_SAMPLES = 10_000
_NORMAL_95 = 1.959964
_STUDENT_95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""By degrees of freedom, from one on. The last stands for more, which makes an interval too wide."""
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


def grouped_mean_interval(groups: Sequence[Sequence[float]]) -> list[float]:
    """The 95 % bootstrap interval of the mean of all values, where those of one group belong together.

    Whole groups are drawn. Where each has one value, it is `bootstrap_interval` of the mean.
    """

    def mean(drawn: Sequence[tuple[float, int]]) -> float:
        return math.fsum(total for total, _ in drawn) / sum(num for _, num in drawn)

    return bootstrap_interval([(math.fsum(group), len(group)) for group in groups], mean)


def grouped_student_interval(groups: Sequence[Sequence[float]]) -> list[float]:
    """Student's 95 % interval of the mean of all values, where those of one of two groups or more belong together.

    Groups of unequal size weigh by it, as in the mean (Cochran, Sampling Techniques, 1977, section 6.3).
    """
    sizes, totals = [len(group) for group in groups], [math.fsum(group) for group in groups]
    mean, size = sum(totals) / sum(sizes), statistics.fmean(sizes)
    return student_interval([mean + (total - mean * num) / size for total, num in zip(totals, sizes, strict=True)])


def student_interval(values: Sequence[float]) -> list[float]:
    """Student's 95 % interval of a mean of two values or more. It is honest where a bootstrap has too few of them."""
    free = len(values) - 1
    half = _STUDENT_95[min(free, len(_STUDENT_95)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return [statistics.fmean(values) - half, statistics.fmean(values) + half]


def student_ratio_interval(ratios: Sequence[float]) -> list[float]:
    """Student's 95 % interval of the geometric mean of two ratios or more, by their logarithms."""
    return [math.exp(end) for end in student_interval([math.log(one) for one in ratios])]


def repeated_ratio_interval(ratios: Sequence[float]) -> list[float]:
    """The same of one ratio or more. One alone is no interval, and stands for both ends."""
    return student_ratio_interval(ratios) if len(ratios) > 1 else [ratios[0]] * 2


def wilson(share: float, num: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was seen in `num` independent cases."""
    z = _NORMAL_95**2 / num
    middle, half = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    return max(0.0, (middle - half) / (1 + z)), min(1.0, (middle + half) / (1 + z))


def bounded_interval(values: Sequence[float], lowest: float, highest: float) -> list[float]:
    """The 95 % interval of a mean of values between two bounds, by Wilson. It has a width where all values agree, too.

    Values between the bounds vary no more than values at the bounds with their mean, which Wilson's interval is for.
    """
    return grouped_bounded_interval([[value] for value in values], lowest, highest)


def grouped_bounded_interval(groups: Sequence[Sequence[float]], lowest: float, highest: float) -> list[float]:
    """The same, where values of one group belong together: a group tells as much as one value, however many it has.

    Groups of unequal size tell as much as fewer equal ones (Kish, Survey Sampling, 1965).
    """
    sizes = [len(group) for group in groups]
    total, num = sum(sizes), sum(sizes) ** 2 / sum(size * size for size in sizes)
    share = (sum(sum(group) for group in groups) / total - lowest) / (highest - lowest)
    return [round(lowest + (highest - lowest) * edge, 4) for edge in wilson(share, num)]
