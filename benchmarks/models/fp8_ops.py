"""vLLM's CPU ops for an fp8 KV cache, in torch, for machines whose instruction set has none of them.

vLLM 0.32 builds its fp8 attention for AVX-512 only. `with_fp8_ops` leaves it alone there. Elsewhere these twins stand
in for three ops. They store as `reshape_and_cache_fp8_vec_impl` of vllm/csrc/cpu/cpu_attn_fp8.hpp does: saturated, cut
towards zero, the keys of a block on their side. All else of the engine is vLLM's own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from vllm.v1.attention.backends import cpu_attn

from acmserve.kernels.stored_type import VIEWS

HAS_FP8_OPS = torch.cpu._is_avx512_supported()
SMALLEST_NORMAL = {torch.float8_e4m3fn: -6, torch.float8_e5m2: -14}
MANTISSA_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}


class Patch(Protocol):
    """What replaces the parts of vLLM: `pytest.MonkeyPatch`, or one that never takes anything back."""

    def setattr(self, target: Any, name: str, value: Any) -> None:
        """Set the attribute of a module."""


def with_fp8_ops(patch: Patch) -> None:
    """Let the engine of this process keep its KV in 8 bits."""
    if HAS_FP8_OPS:
        return
    patch.setattr(cpu_attn, "_get_attn_isa", lambda *args: "vec")
    patch.setattr(cpu_attn.ops, "cpu_attn_get_scheduler_metadata", lambda **kwargs: torch.zeros(1))
    patch.setattr(cpu_attn.ops, "cpu_attn_reshape_and_cache", reshape_and_cache)
    patch.setattr(cpu_attn.ops, "cpu_attention_with_kv_cache", attention)


def cut(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in an 8-bit type: saturated, then cut towards zero."""
    largest = torch.finfo(dtype).max
    values = values.float().clamp(-largest, largest)
    exponent = torch.frexp(values).exponent - 1
    step = torch.exp2((exponent.clamp(min=SMALLEST_NORMAL[dtype]) - MANTISSA_BITS[dtype]).float())
    return (torch.trunc(values / step) * step).to(dtype)


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    isa: str,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    kv_cache_dtype: str = "auto",
) -> None:
    """Store K and V `[n, heads, size]` in these slots."""
    keys, values = _blocks(key_cache, value_cache, kv_cache_dtype)
    n = slot_mapping.numel()
    block, offset = slot_mapping // keys.shape[3], slot_mapping % keys.shape[3]
    keys.view(torch.uint8)[block, :, :, offset] = cut(key[:n] / k_scale, keys.dtype).view(torch.uint8)
    values.view(torch.uint8)[block, :, offset, :] = cut(value[:n] / v_scale, values.dtype).view(torch.uint8)


def attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    output: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    block_table: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    kv_cache_dtype: str = "auto",
    sliding_window: int = -1,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> None:
    """Causal attention of `query` `[n, heads, size]`, request by request, with vLLM's window and sinks."""
    keys, values = _blocks(key_cache, value_cache, kv_cache_dtype)
    starts = query_start_loc.tolist()
    for i, (first, behind) in enumerate(pairwise(starts)):
        num_tokens = int(seq_lens[i])
        blocks = block_table[i, : -(-num_tokens // keys.shape[3])].long()
        key = keys[blocks].float().permute(1, 0, 3, 2).flatten(1, 2)[:, :num_tokens] * k_scale
        value = values[blocks].float().permute(1, 0, 2, 3).flatten(1, 2)[:, :num_tokens] * v_scale
        q = query[first:behind].float().unflatten(1, (key.shape[0], -1))
        scores = torch.einsum("nhgd,htd->hgnt", q, key) * scale
        position = torch.arange(num_tokens - (behind - first), num_tokens)
        ahead = torch.arange(num_tokens)[None, :] - position[:, None]
        unread = (ahead > 0) | (ahead <= -sliding_window if sliding_window > 0 else ahead > 0)
        scores = scores.masked_fill(unread, float("-inf"))
        if s_aux is not None:
            sinks = s_aux.float().view(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        answer = torch.einsum("hgnt,htd->nhgd", scores.softmax(dim=-1)[..., :num_tokens], value)
        output[first:behind] = answer.reshape(output[first:behind].shape).to(output.dtype)


def _blocks(key_cache: Tensor, value_cache: Tensor, kv_cache_dtype: str) -> tuple[Tensor, Tensor]:
    """K `[num_blocks, heads, size, block_size]` and V `[num_blocks, heads, block_size, size]`, of one tensor each."""
    num_blocks, num_heads, block_size, size = key_cache.shape
    stored = VIEWS[kv_cache_dtype]
    strides = key_cache.stride()[:2]
    keys = key_cache.as_strided((num_blocks, num_heads, size, block_size), (*strides, block_size, 1))
    return keys.view(stored), value_cache.view(stored)
