"""vLLM's Mamba-2 layers on a CPU, watched: whoever records transitions sees the step sizes of every prefill.

    layer.forward -> MambaMixer2.conv_ssm_forward -> its scan
                     ^ wrapped here, once a process    unchanged

A head forgets by one number a token, `exp(softplus(dt + bias) * A)`. So its transition over a chunk is a product of
numbers, and nothing has to be run again.

Knows vLLM's layer and what stands in its input. Does not know which chunks are to be recorded.

Source of the recurrence: Transformers are SSMs, arXiv 2405.21060, section 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from acmserve.engine.vllm.model.delta_rule import Watcher
from acmserve.errors import MoveRefused


def decays(raw_steps: Tensor, bias: Tensor, rates: Tensor) -> Tensor:
    """What the heads keep of a state over tokens, `[heads, 1, 1]` in float32.

    Args:
        raw_steps: step sizes before bias and softplus, `[num_tokens, heads]`.
        bias: what is added to them, `[heads]`.
        rates: `A` of each head, which is negative, `[heads]`.

    """
    steps = torch.nn.functional.softplus(raw_steps.float() + bias.float())
    return (steps.double().sum(dim=0) * rates.double()).exp().float()[:, None, None]


class _WatchedScan:
    """Stands in the class in the place of `conv_ssm_forward`. `watch` is called first."""

    def __init__(self, scan: Any, watch: Watcher) -> None:
        self.scan = scan
        self._watch = watch

    def __get__(self, layer: Any, owner: type) -> Any:
        return self if layer is None else lambda *args, **kwargs: self._run(layer, *args, **kwargs)

    def _run(self, layer: Any, projected_states: Tensor, output: Tensor) -> None:
        from vllm.forward_context import get_forward_context

        metadata = (get_forward_context().attn_metadata or {}).get(layer.prefix)
        if metadata is not None and metadata.num_prefills:
            starts = (metadata.query_start_loc_p + metadata.num_decode_tokens).tolist()
            raw_steps = projected_states[..., -layer.tped_dt_size :]
            self._watch(
                layer.kv_cache[1],
                metadata.state_indices_tensor_p.tolist(),
                lambda index: decays(raw_steps[starts[index] : starts[index + 1]], layer.dt_bias, layer.A),
            )
        self.scan(layer, projected_states, output)


def watch_state_space(watch: Watcher) -> None:
    """Have `watch` called in every prefill of this process. Who watched before does no longer.

    Raises `MoveRefused` where this vLLM's layer has no such method.
    """
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    layer_class: Any = MambaMixer2
    scan = layer_class.__dict__.get("conv_ssm_forward")
    if scan is None:
        raise MoveRefused("model: this vLLM's MambaMixer2 has no conv_ssm_forward, whose inputs tell transitions")
    layer_class.conv_ssm_forward = _WatchedScan(scan.scan if isinstance(scan, _WatchedScan) else scan, watch)
