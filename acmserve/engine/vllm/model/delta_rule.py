"""vLLM's gated delta rule on a CPU, watched: whoever records transitions sees the inputs of every prefill.

    layer.forward -> vllm._custom_ops.chunk_gated_delta_rule_cpu -> its kernel
                     ^ replaced here, once a process                 unchanged, and run once more for what is recorded

A transition over a chunk is the same recurrence without values, begun at the identity. So vLLM's own kernel makes it.

Knows vLLM's function and its tensors. Does not know which chunks are to be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from acmserve.errors import MoveRefused

Watcher = Callable[[Tensor, "list[int]", Callable[[int], Tensor]], None]
"""(states `[num_blocks, heads, key_size, value_size]`, block of each sequence, the transition of a sequence)."""


class WatchedDeltaRule:
    """Callable as vLLM's function. `watch` is called first, with what the function is going to run on."""

    def __init__(self, rule: Callable[..., Any], watch: Watcher) -> None:
        self.rule = rule
        self._watch = watch

    def __call__(self, **inputs: Any) -> Any:
        self._watch(
            inputs["initial_state"],
            inputs["initial_state_indices"].tolist(),
            lambda index: self._transition(index, inputs),
        )
        return self.rule(**inputs)

    def _transition(self, index: int, inputs: dict[str, Any]) -> Tensor:
        """The transition over sequence `index`, `[heads, key_size, key_size]` in float32."""
        start, end = inputs["cu_seqlens"][index : index + 2].tolist()
        part = {name: inputs[name][:, start:end].contiguous() for name in ("query", "key", "g", "beta")}
        num_heads, key_size = inputs["value"].shape[2], inputs["key"].shape[3]
        state = torch.eye(key_size, dtype=inputs["initial_state"].dtype).repeat(1, num_heads, 1, 1)
        part |= {
            "value": inputs["value"].new_zeros(1, end - start, num_heads, key_size),
            "initial_state": state,
            "cu_seqlens": torch.tensor([0, end - start], dtype=inputs["cu_seqlens"].dtype),
            "initial_state_indices": torch.zeros(1, dtype=inputs["initial_state_indices"].dtype),
        }
        self.rule(**{**inputs, **part})
        return state[0].float()


def watch_delta_rule(watch: Watcher) -> None:
    """Have `watch` called in every prefill of this process. Who watched before does no longer.

    Raises `MoveRefused` where this vLLM has no such function.
    """
    import vllm._custom_ops as ops

    rule = getattr(ops, "chunk_gated_delta_rule_cpu", None)
    if rule is None:
        raise MoveRefused("model: this vLLM has no chunk_gated_delta_rule_cpu, whose inputs tell transitions")
    ops.chunk_gated_delta_rule_cpu = WatchedDeltaRule(rule.rule if isinstance(rule, WatchedDeltaRule) else rule, watch)
