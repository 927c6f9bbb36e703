"""One request of a session as it was served: what the next one is compared with.

It knows neither the session nor what was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acmserve.context.transcript.message import Message


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
