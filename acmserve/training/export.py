"""Rollouts become rows of a trainer's format, one by one. Each rollout is checked while it is written.

Rollouts are in memory, which is linear in their tokens. Rows are not, because all of them together are quadratic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from acmserve.errors import InvalidRequest
from acmserve.training.collection import Algorithm, collect
from acmserve.training.coverage import TokenCoverage
from acmserve.training.credit import Credits
from acmserve.training.formats import FORMATS, Row
from acmserve.training.rollout import Rollout
from acmserve.validation import echo, listing


def export_rows(
    rollouts: Sequence[Rollout],
    format_name: str,
    algorithm: Algorithm = "prefix",
    earned: Sequence[Credits] | None = None,
    min_reward: float | None = None,
) -> Iterator[Row]:
    """The rows of all rollouts, without samples that earned less than `min_reward`.

    Raises `IntegrityError` where a sampled token would not be trained exactly once.
    """
    if format_name not in FORMATS:
        raise InvalidRequest("format", f"must be {listing(FORMATS)}, not {echo(format_name)}")
    if min_reward is not None and earned is None:
        raise InvalidRequest("min_reward", "needs rewards")
    if min_reward is not None and not math.isfinite(min_reward):
        raise InvalidRequest("min_reward", f"must be a finite number, not {min_reward}")
    row = FORMATS[format_name].row
    credit_of: Sequence[Credits | None] = earned if earned is not None else [None] * len(rollouts)
    for rollout, credit in zip(rollouts, credit_of, strict=True):
        coverage = TokenCoverage(rollout)
        for sample in collect(rollout, algorithm, partial(_earned, credit)):
            coverage.add(sample)
            if credit is None or min_reward is None or credit[sample.trained[0]].reward >= min_reward:
                yield row(rollout, sample, credit)
        coverage.check_integrity()


def _earned(credit: Credits | None, number: int) -> object:
    """What a row says once for all of its completions."""
    return None if credit is None else (credit[number].reward, credit[number].group)
