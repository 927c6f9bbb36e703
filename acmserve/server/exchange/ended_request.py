"""What is known of a request to the engine when it has ended, and what vLLM's outputs say of it on the way.

`EndedRequest` is what is told of it. `Served` is what the session's next one is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acmserve.context.session.turns.turn import TurnEnd
from acmserve.context.transcript.message import Message


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


@dataclass(frozen=True, slots=True)
class Served:
    """One request as served: the messages rendered for it, its prompt, its ranges that hold moved KV, its answer.

    The prompt is int32 [num_tokens]. Of the messages it holds what the transcript holds, too.
    """

    messages: tuple[Message, ...]
    prompt_token_ids: NDArray[np.int32]
    moved: tuple[tuple[int, int], ...]
    fidelity: str
    answer: str

    @property
    def num_bytes(self) -> int:
        """Host memory of this record, but for the messages."""
        return self.prompt_token_ids.nbytes + len(self.answer) + 8 * len(self.messages) + 16 * len(self.moved)


def first_token_seconds(output: Any) -> float | None:
    """vLLM's own measure, which an answer that is no stream has, too. None where vLLM keeps no statistics."""
    return getattr(getattr(output, "metrics", None), "first_token_latency", None) or None


def num_sampled(output: Any) -> int:
    """Tokens that an output brings."""
    return sum(len(completion.token_ids) for completion in getattr(output, "outputs", ()))
