"""What is known of a request to the engine when it has ended, and what vLLM's outputs say of it on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.context.session.turns.turn import TurnEnd


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """`receipt` is None where the engine said none.

    `prompt_tokens` are 0 where the prompt was not seen. `first_token_seconds` is None where nobody knows it.
    """

    request_id: str
    receipt: Mapping[str, Any] | None
    prompt_tokens: int
    output_tokens: int
    first_token_seconds: float | None
    seconds: float
    end: TurnEnd


def first_token_seconds(output: Any) -> float | None:
    """vLLM's own measure, which an answer that is no stream has, too. None where vLLM keeps no statistics."""
    return getattr(getattr(output, "metrics", None), "first_token_latency", None) or None


def num_sampled(output: Any) -> int:
    """Tokens that an output brings."""
    return sum(len(completion.token_ids) for completion in getattr(output, "outputs", ()))
