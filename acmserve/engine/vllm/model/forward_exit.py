"""A forward pass that is left in front of one of its layers.

    vLLM's runner   inputs -> model ----------------------------------> logits -> sampler -> output
    attention       layer 0   layer 1   ...   [ asks the connector in front of each ]
                                              is_wanted: the pass ends here, its hidden states are zeros

The runner goes on as ever, so its state and the connector's are those of any step. What the chunk would have written
behind this layer is missing in the KV cache, and a token that is sampled means nothing. The scheduler drops both
(`engine/scheduling/exits/chunk_exits.py`).

Decision: vLLM asks a connector in front of each attention to wait for that layer's KV (`wait_for_layer_load`). That is
the exit: no hook in the model, and no cost where nothing is armed. Zeros cost one row of logits.

Knows nothing of requests, nor why anybody wants to leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acmserve.errors import AcmError

_SHAPE = "_acm_output_shape"


class ForwardLeft(AcmError):
    """Thrown out of the model, and caught in `run_model`: never seen outside."""


class ForwardExit:
    """The exit of one worker. It is armed for a step, and disarmed at its end."""

    def __init__(self) -> None:
        self._is_wanted: Callable[[], bool] | None = None
        self._left_layer: str | None = None

    def arm(self, is_wanted: Callable[[], bool]) -> None:
        """From now on the pass is left where `is_wanted()` holds in front of a layer."""
        self._is_wanted, self._left_layer = is_wanted, None

    def check(self, layer_name: str) -> None:
        """In front of a layer's attention. Raises `ForwardLeft` where the pass is to end."""
        if self._is_wanted is not None and self._is_wanted():
            self._left_layer = layer_name
            raise ForwardLeft(layer_name)

    def disarm(self) -> str | None:
        """The step's pass is over. Returns the layer that it was left in front of, None where it went to its end."""
        self._is_wanted, layer = None, self._left_layer
        self._left_layer = None
        return layer


def run_model(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """vLLM's forward pass, or zeros like those of the last one where it was left. A pass must have been run before.

    Wraps model runner V1's `_model_forward`.
    """
    try:
        output = original(runner, *args, **kwargs)
    except ForwardLeft:
        like = vars(runner)[_SHAPE]
        positions = kwargs["positions"] if "positions" in kwargs else args[1]
        return like.new_zeros(positions.shape[-1], *like.shape[1:])
    if _SHAPE not in vars(runner) and hasattr(output, "new_zeros"):
        setattr(runner, _SHAPE, output.new_zeros(0, *output.shape[1:]))
    return output
