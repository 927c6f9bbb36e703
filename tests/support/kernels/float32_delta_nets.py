"""vLLM's gated delta nets for CPUs, in torch and float32: its own kernels take bfloat16 alone.

    layer.forward_cpu  ->  cpu_gdn_attention_core       refuses float32, so what it calls is called here
                           causal_conv1d_fn_cpu         vLLM's own, in torch
                           fused_gdn_gating_cpu         ) the three functions here,
                           chunk_gated_delta_rule_cpu   ) token by token
                           fused_sigmoid_...update_cpu  )

So the oracle of recurrent layers has the bound of the other models, with logits as they come. All that decides what is
kept, composed and copied is the product's and vLLM's.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from vllm import _custom_ops as ops
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

MIN_NORM = 1e-6


def with_float32_delta_nets(patch: pytest.MonkeyPatch) -> None:
    """Let an engine of this process run them in float32. Comes in front of its start."""
    gdn_attention.register_cpu_gdn_attention_ops()
    patch.setattr(torch.ops.vllm, "cpu_gdn_attention_core", attend)
    patch.setattr(ops, "fused_gdn_gating_cpu", gates)
    patch.setattr(ops, "chunk_gated_delta_rule_cpu", run_chunk)
    patch.setattr(ops, "fused_sigmoid_gating_delta_rule_update_cpu", run_step)


def attend(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: Any) -> None:
    """vLLM's function of this name, without its refusal."""
    context = get_forward_context()
    layer: Any = context.no_compile_layers[gdn_attention._resolve_layer_name(layer_name)]
    if context.attn_metadata is not None:
        metadata: Any = context.attn_metadata[layer.prefix]  # type: ignore[index,call-overload]
        # vLLM has a convolution of its own for these processors, in bfloat16.
        with mock.patch.object(torch.cpu, "_is_avx512_bf16_supported", return_value=False):
            gdn_attention._cpu_gdn_attention_nonspec(layer, metadata, mixed_qkv, b, a, core_attn_out)


def gates(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803 -- vLLM's names
    """Logarithms of the decays, and strengths, `[1, num_tokens, heads]`."""
    return (-A_log.exp() * functional.softplus(a + dt_bias))[None], b.sigmoid()[None]


def run_chunk(
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    initial_state_indices: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The tokens of each sequence in turn, `[1, num_tokens, heads, size]`. States change where they stand."""
    per_key = value.shape[2] // key.shape[2]
    query, key = (_unit(one[0]).repeat_interleave(per_key, dim=1) for one in (query, key))
    answers = torch.empty_like(value[0])
    bounds = cu_seqlens.tolist()
    for place, start, end in zip(initial_state_indices.tolist(), bounds, bounds[1:], strict=False):
        state = initial_state[place]
        for token in range(start, end):
            state = g[0, token].exp()[:, None, None] * state
            change = value[0, token] - torch.einsum("hk,hkv->hv", key[token], state)
            state = state + key[token][:, :, None] * (beta[0, token][:, None] * change)[:, None, :]
            answers[token] = torch.einsum("hk,hkv->hv", query[token], state)
        initial_state[place] = state
    return (answers * key.shape[-1] ** -0.5)[None], initial_state


def run_step(
    *,
    A_log: Tensor,  # noqa: N803 -- vLLM's name
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    **_: Any,
) -> Tensor:
    """One token of each sequence."""
    g, beta = gates(A_log, a, b, dt_bias)
    answers, _states = run_chunk(
        query=q,
        key=k,
        value=v,
        g=g,
        beta=beta,
        initial_state=initial_state_source,
        cu_seqlens=torch.arange(len(a) + 1),
        initial_state_indices=initial_state_indices,
    )
    return answers[0][:, None]


def _unit(keys: Tensor) -> Tensor:
    return keys / keys.square().sum(dim=-1, keepdim=True).add(MIN_NORM).sqrt()
