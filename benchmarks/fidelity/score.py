"""How far served distributions are from exact ones, and what a set of such distances amounts to. Pure numbers.

KL(exact || served) in nats per token: what a reader of the served distribution is surprised by beyond the exact one.
Intervals are percentile bootstraps over documents, because the cases of one document share text.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

BIN_EDGES = (0, 8, 16, 32, 64)
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

    def bins(self) -> list[float | None]:
        """Mean KL between `BIN_EDGES`, counted from the first token behind the prompt."""
        parts = [self.kl[start:end] for start, end in pairwise(BIN_EDGES)]
        return [round(statistics.fmean(part), 7) if part else None for part in parts]


def distance(exact: torch.Tensor, served: torch.Tensor) -> Distance:
    """Compare logits `[num_tokens, vocab]`, float32; the sums are float64. Raises ValueError on other shapes."""
    if exact.shape != served.shape or exact.dim() != 2:
        raise ValueError(f"logits of shapes {tuple(exact.shape)} and {tuple(served.shape)} cannot be compared")
    kl: list[float] = []
    for p_rows, q_rows in zip(exact.split(_ROWS_AT_ONCE), served.split(_ROWS_AT_ONCE), strict=True):
        log_p, log_q = p_rows.double().log_softmax(-1), q_rows.double().log_softmax(-1)
        kl += (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0.0).tolist()
    same = exact.argmax(-1) == served.argmax(-1)
    return Distance(tuple(kl), tuple(same.tolist()), float((exact - served).abs().max()))


def divergence(expected: Sequence[int], given: Sequence[int]) -> int | None:
    """Index of the first token that differs; None when all are the same."""
    return next((n for n, (a, b) in enumerate(zip(expected, given, strict=True)) if a != b), None)


def interval(values: Sequence[float], clusters: Sequence[str], seed: int) -> tuple[float, float] | None:
    """95 % interval of the mean, resampling whole clusters; None for fewer than two clusters."""
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


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation, ties sharing their mean rank; None where one of the two is constant or both are too short."""
    if len(first) < 3 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> Any:
    _, place, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def text_features(prefix_length: int, folded: Sequence[int], suffix: Sequence[int]) -> dict[str, float]:
    """What is known of an edit for free: lengths, and how much of S repeats F (share of its distinct 3-grams)."""
    total = prefix_length + len(folded) + len(suffix)
    of_suffix, of_folded = _grams(suffix), _grams(folded)
    return {
        "folded_share": len(folded) / total,
        "folded_per_suffix": len(folded) / max(len(suffix), 1),
        "suffix_tokens": float(len(suffix)),
        "repeated_3grams": len(of_suffix & of_folded) / max(len(of_suffix), 1),
    }


def _grams(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    return set(zip(tokens, tokens[1:], tokens[2:], strict=False))
