"""The reward of *Sculptor* (arXiv 2508.04664), Equation 4, from an answer that somebody judged and its rollout.

    -1   a format error, more than 20 tool calls, or more than 128k tokens, even where the answer is right
    +1   the right answer
     0   anything else

Does not know whether an answer is right. The limits are options.

Decision: the tokens of a trajectory are those of its longest prompt with its completion. That much has to fit into a
sequence of training. `128k` is 128,000, as `50k` is 50,000 everywhere in acmserve.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.errors import InvalidRequest
from acmserve.training.rollout import Rollout


@dataclass(frozen=True, slots=True)
class RewardLimits:
    """What a rollout may use. More of it is -1."""

    max_calls: int = 20
    max_tokens: int = 128_000

    def __post_init__(self) -> None:
        for field, value in (("max_calls", self.max_calls), ("max_tokens", self.max_tokens)):
            if value < 0:
                raise InvalidRequest(field, f"must be at least 0, not {value}")


def outcome_reward(rollout: Rollout, *, is_correct: bool, limits: RewardLimits | None = None) -> float:
    """Equation 4."""
    return -1.0 if violation(rollout, limits) is not None else float(is_correct)


def violation(rollout: Rollout, limits: RewardLimits | None = None) -> str | None:
    """Which limit the rollout broke: `format_error`, `calls` or `tokens`. None: none of them."""
    limits = limits or RewardLimits()
    if rollout.has_format_error:
        return "format_error"
    if rollout.num_calls > limits.max_calls:
        return "calls"
    return "tokens" if rollout.longest_sequence > limits.max_tokens else None
