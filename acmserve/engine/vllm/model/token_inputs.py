"""What the watched layers tell of tokens: their inputs, as far as the transition over them depends on those.

Knows neither layers nor kernels. `delta_rule.py` and `state_space.py` have the inputs of a kind each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor


class TokenInputs(Protocol):
    """Inputs of adjacent tokens of one sequence, in one layer."""

    @property
    def num_tokens(self) -> int:
        """How many tokens."""

    @property
    def num_bytes(self) -> int:
        """Memory that is held."""

    def joined(self, others: Sequence[Any]) -> TokenInputs:
        """These tokens, and others of the same layer behind them, in order."""

    def transition(self) -> Tensor:
        """The transition over them, `[heads, rows, rows]` or `[heads, 1, 1]`, float32."""


Watcher = Callable[[Tensor, Tensor, Callable[[int], TokenInputs]], None]
"""(states `[num_blocks, heads, rows, columns]`, block of each sequence `[num_sequences]`, the inputs of a sequence).

It is called in every step, so it gets tensors as they are.
"""
