"""Advantages of a group of rollouts that had one query: Equation 3 of *Sculptor* (arXiv 2508.04664), and FoldGRPO's.

    GSPO       (r - mean) / std                          one for a rollout
    FoldGRPO   (clip(r + q, low, high) - mean) / std     one for each completion, q its process reward (Section 2.3.1)

Knows numbers only. The deviation is that of a sample (n - 1), as in TRL and verl.

Decision: clipping lifts no outcome. A rollout of -1 stays there, where the paper, whose outcomes are 0 and 1, has none.

Decision: where all rewards are equal, every advantage is 0. The group teaches nothing, and nothing is divided by 0. So
is that of a group of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from acmserve.errors import InvalidRequest

CLIP = (0.0, 1.0)
"""The range to which *Context-Folding* (arXiv 2510.11967) clips an outcome with its process reward."""
MIN_DEVIATION = 1e-8


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """The advantage of each rollout of a group."""
    mean, deviation = _moments(rewards)
    return [0.0 if deviation is None else (reward - mean) / deviation for reward in rewards]


def fold_advantages(
    rewards: Sequence[float], processes: Sequence[Mapping[int, float]], clip: tuple[float, float] = CLIP
) -> list[dict[int, float]]:
    """The advantage of each completion of each rollout of a group. The mean is that of the outcomes alone."""
    if len(rewards) != len(processes):
        raise InvalidRequest("processes", f"has {len(processes)} rollouts, and there are {len(rewards)} rewards")
    low, high = clip
    if not low < high:
        raise InvalidRequest("clip", f"must rise, not go from {low} to {high}")
    mean, deviation = _moments(rewards)
    return [
        {
            number: 0.0 if deviation is None else (_clip(reward + process, min(low, reward), high) - mean) / deviation
            for number, process in one.items()
        }
        for reward, one in zip(rewards, processes, strict=True)
    ]


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _moments(rewards: Sequence[float]) -> tuple[float, float | None]:
    """Mean and deviation. None: the rewards do not differ."""
    if not rewards:
        raise InvalidRequest("rewards", "are empty")
    deviation = stdev(rewards) if len(rewards) > 1 else 0.0
    return fmean(rewards), deviation if deviation > MIN_DEVIATION else None
