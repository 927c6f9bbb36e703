"""How far served distributions are from exact ones, and what a set of such distances amounts to. Pure numbers.

KL(exact || served) in nats per token: what a reader of the served distribution is surprised by beyond the exact one.
Intervals are percentile bootstraps over documents, because the cases of one document share text.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_NUM_RESAMPLES = 2000
_ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Distance:
    """Of each token of one continuation: KL in nats, and whether the likeliest token is the same one."""

    kl: tuple[float, ...]
    same_top: tuple[bool, ...]
    max_logit_difference: float

    @property
    def mean_kl(self) -> float:
        return statistics.fmean(self.kl)

    @property
    def top1(self) -> float:
        """Share of tokens whose likeliest token is the same."""
        return statistics.fmean(self.same_top)


def distance(exact: torch.Tensor, served: torch.Tensor) -> Distance:
    """Compare logits `[num_tokens, vocab]`, float32. The sums are float64. Raises ValueError on other shapes."""
    if exact.shape != served.shape or exact.dim() != 2:
        raise ValueError(f"logits of shapes {tuple(exact.shape)} and {tuple(served.shape)} cannot be compared")
    kl: list[float] = []
    for p_rows, q_rows in zip(exact.split(_ROWS_AT_ONCE), served.split(_ROWS_AT_ONCE), strict=True):
        log_p, log_q = p_rows.double().log_softmax(-1), q_rows.double().log_softmax(-1)
        kl += (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0.0).tolist()
    same = exact.argmax(-1) == served.argmax(-1)
    return Distance(tuple(kl), tuple(same.tolist()), float((exact - served).abs().max()))


def interval(values: Sequence[float], clusters: Sequence[str], seed: int) -> tuple[float, float] | None:
    """95 % interval of the mean, resampling whole clusters. None for fewer than two clusters."""
    names = sorted(set(clusters))
    if len(names) < 2:
        return None
    index = {name: number for number, name in enumerate(names)}
    where = np.array([index[name] for name in clusters])
    sums = np.bincount(where, weights=np.asarray(values), minlength=len(names))
    counts = np.bincount(where, minlength=len(names))
    drawn = np.random.default_rng(seed).integers(len(names), size=(_NUM_RESAMPLES, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
