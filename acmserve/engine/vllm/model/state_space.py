"""vLLM's Mamba-2 layers on a CPU, watched: whoever records transitions sees the step sizes of every token.

    layer.forward -> MambaMixer2.conv_ssm_forward -> its scan
                     ^ wrapped here, once a process    unchanged

A head forgets by one number a token, `exp(softplus(dt + bias) * A)`. So its transition over tokens is a product of
numbers, and nothing has to be run again.

Knows vLLM's layer and what stands in its input. Does not know which tokens are to be recorded.

Source of the recurrence: Transformers are SSMs, arXiv 2405.21060, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acmserve.engine.vllm.model.token_inputs import Watcher
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


@dataclass(frozen=True, slots=True)
class DecayedTokens:
    """Tokens of one sequence, and what the heads keep of a state over them, `[heads, 1, 1]` in float32."""

    num_tokens: int
    decay: Tensor

    @property
    def num_bytes(self) -> int:
        """Memory that is held."""
        return self.decay.nbytes

    def joined(self, others: Sequence[DecayedTokens]) -> DecayedTokens:
        """These tokens, and others behind them."""
        parts = [self, *others]
        return DecayedTokens(sum(part.num_tokens for part in parts), torch.stack([p.decay for p in parts]).prod(dim=0))

    def transition(self) -> Tensor:
        """The transition over them."""
        return self.decay


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
        raw_steps = projected_states[..., -layer.tped_dt_size :]
        for block_ids, place_of in _sequences(metadata) if metadata is not None else ():

            def tokens_of(index: int, place_of: Callable[[int], slice] = place_of) -> DecayedTokens:
                steps = raw_steps[place_of(index)]
                return DecayedTokens(len(steps), decays(steps, layer.dt_bias, layer.A))

            self._watch(layer.kv_cache[1], block_ids, tokens_of)
        self.scan(layer, projected_states, output)


def _sequences(metadata: Any) -> Iterator[tuple[Tensor, Callable[[int], slice]]]:
    """Of the sequences that decode, then of those that prefill: the block of each state, and where its tokens stand.

    The tokens of the former are in front, one of each.
    """
    num_decoded, starts = metadata.num_decode_tokens, metadata.query_start_loc_p
    if metadata.num_decodes and num_decoded == metadata.num_decodes:
        yield metadata.state_indices_tensor_d[:, 0], lambda index: slice(index, index + 1)
    if metadata.num_prefills:
        yield metadata.state_indices_tensor_p, lambda index: slice(*(starts[index : index + 2] + num_decoded).tolist())


def watch_state_space(watch: Watcher) -> None:
    """Have `watch` called for all tokens of this process. Who watched before does no longer.

    Raises `MoveRefused` where this vLLM's layer has no such method.
    """
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    layer_class: Any = MambaMixer2
    scan = layer_class.__dict__.get("conv_ssm_forward")
    if scan is None:
        raise MoveRefused("model: this vLLM's MambaMixer2 has no conv_ssm_forward, whose inputs tell transitions")
    layer_class.conv_ssm_forward = _WatchedScan(scan.scan if isinstance(scan, _WatchedScan) else scan, watch)
