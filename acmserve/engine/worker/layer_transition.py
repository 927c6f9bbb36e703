"""The transition of one recurrent layer over the tokens that a worker has seen of a request, step by step.

    prefill   [ chunk of many tokens )                        multiplied into the product at once
    decode                            [ token )[ token )..    kept as inputs, and multiplied in many at a time

Decision: a decoded token's inputs are kept, where its factor could be multiplied in. That product is as large as the
step's update of the state. Inputs of `MAX_PENDING` tokens take far less room, and one run of the layer's own kernel.

Does not know requests, layers or what the inputs are.
"""

from __future__ import annotations

from functools import reduce

from torch import Tensor

from acmserve.engine.vllm.model.token_inputs import TokenInputs
from acmserve.kernels.recurrent import chain, norm_bound

MAX_PENDING = 64
"""Tokens whose inputs wait, at most, before they are multiplied in."""


class LayerTransition:
    """See the module. `norm` bounds that of the transition: no token makes it larger. `num_bytes` are held."""

    def __init__(self) -> None:
        self.num_tokens = self.num_bytes = 0
        self.norm = 1.0
        self._product: Tensor | None = None
        self._pending: list[TokenInputs] = []
        self._num_pending = 0

    def add(self, inputs: TokenInputs) -> None:
        """Go on over these tokens."""
        self._pending.append(inputs)
        self.num_tokens += inputs.num_tokens
        self.num_bytes += inputs.num_bytes
        self._num_pending += inputs.num_tokens
        if self._num_pending >= MAX_PENDING:
            self.settle()

    def product(self) -> Tensor:
        """The transition over all tokens so far. There has to be one. What is held, and was counted, stays as it is."""
        parts = [] if self._product is None else [self._product]
        if self._pending:
            first, *others = self._pending
            parts.append(first.joined(others).transition() if others else first.transition())
        return reduce(chain, parts)

    def settle(self) -> None:
        """Hold the product alone, and no tokens. Its norm is known from here on."""
        if self._pending:
            self._product = self.product()
            self._pending, self._num_pending = [], 0
            self.num_bytes = self._product.nbytes
            self.norm = min(self.norm, norm_bound(self._product))
