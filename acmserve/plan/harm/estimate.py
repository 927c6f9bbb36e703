"""A running estimate of the harm that moved KV did, from answers that were given under it.

    sampled token     x1     x2     x3        log p(x | moved KV), as it was sampled
                                              log p(x | exact KV), of the same token behind the same tokens
    log ratio         r1     r2     r3        their difference r
    harm              exp(-r) - 1 + r         its mean estimates KL(moved || exact), in nats a token

Unbiased where tokens are drawn from the model's own distribution, at temperature 1 and without cuts: exp(-r) has mean 1
there. It is never negative and varies less than r itself. Decision: a greedy answer tells r of the likeliest tokens
alone, whose mean may well be negative although KV is off, and would cancel. There the harm is no divergence, and still
0 only where nothing differs. It is cut at `MAX_HARM`, which bounds what one token can do.

Old tokens count less: half after `HALF_LIFE` more. The tokens of one answer hang together, and the bound takes them
for independent. So it asks for `MIN_TOKENS` before anything is concluded, and knows no variance below `LEAST_VARIANCE`.

Pure. It knows neither sessions nor engines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from acmserve.errors import IntegrityError

MAX_HARM = 8.0
"""Nats. A token that is this much likelier under moved KV is as good as impossible under exact KV."""
_MAX_LOG_RATIO = 30.0
HALF_LIFE = 512
"""Tokens: a few dozen short answers."""
MIN_TOKENS = 48
"""Effective tokens below which nothing is concluded."""
LEAST_VARIANCE = 0.01
CONFIDENCE_DEVIATIONS = 1.645
"""One-sided, 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class HarmEstimate:
    """`num_tokens` and `num_answers` count all that was judged. The sums forget."""

    num_tokens: int = 0
    num_answers: int = 0
    weight: float = 0.0
    squared_weight: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def with_answer(self, log_ratios: Sequence[float]) -> HarmEstimate:
        """The estimate with the log ratios of one more answer, in order. An answer without tokens changes nothing."""
        if not len(log_ratios):
            return self
        ratios = np.clip(np.asarray(log_ratios, dtype=np.float64), -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        harm = np.minimum(np.expm1(-ratios) + ratios, MAX_HARM).clip(min=0)
        if np.isnan(ratios).any():
            raise ValueError("a log ratio is not a number")
        weights = 0.5 ** (np.arange(len(ratios) - 1, -1, -1) / HALF_LIFE)
        kept = 0.5 ** (len(ratios) / HALF_LIFE)
        return HarmEstimate(
            self.num_tokens + len(ratios),
            self.num_answers + 1,
            self.weight * kept + float(weights.sum()),
            self.squared_weight * kept**2 + float((weights**2).sum()),
            self.total * kept + float((weights * harm).sum()),
            self.squares * kept + float((weights * harm**2).sum()),
        )

    @property
    def mean(self) -> float:
        """Nats a token. 0 where nothing was judged."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def num_effective(self) -> float:
        """Tokens that would say as much if none was forgotten."""
        return self.weight**2 / self.squared_weight if self.squared_weight else 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough was judged to conclude anything."""
        return self.num_effective >= MIN_TOKENS

    @property
    def upper(self) -> float | None:
        """Bound that the harm lies below, with 95 % confidence. None where too little was judged."""
        if not self.is_known:
            return None
        variance = max(self.squares / self.weight - self.mean**2, LEAST_VARIANCE)
        return self.mean + CONFIDENCE_DEVIATIONS * math.sqrt(variance / self.num_effective)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` where the sums cannot come from tokens."""
        slack = 1e-9 * (1 + self.weight)
        is_bounded = 0 <= self.total <= MAX_HARM * self.weight + slack
        if not is_bounded or not 0 <= self.squared_weight <= self.weight + slack or self.num_tokens < self.num_answers:
            raise IntegrityError(f"harm: {self} is the sum of no answers")
