"""Which numbers stand in a KV cache tensor. vLLM hands quantised caches out as bytes and names their type apart.

    bytes, "fp8_e4m3", one scale for the layer, or one for each head     a view as float8_e4m3fn
    bytes, a type whose scales stand among the numbers                   refused by name

A move need not know a scale that layer and head have for good. Layer and head stay the same, the rotation is linear,
and so turning the stored number turns the value.

Source: vllm/config/cache.py (`CacheDType`), vllm/v1/kv_cache_interface.py (`KVQuantMode`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from acmserve.errors import MoveRefused
from acmserve.kernels.layout import FLOAT_TYPES

VIEWS = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_ds_mla": torch.bfloat16,
}
"""vLLM's names of what is kept in bytes. `fp8_ds_mla` has its rotary key in bfloat16, see `layouts/latent.py`."""
WHY_NOT = {
    "per_token_head": "each token has a scale of its own, and a turned key needs another",
    "nvfp4_ds_mla": "the rotary key is kept in 8 bits between packed numbers",
    "nvfp4": "numbers of 4 bits are packed with a scale for each 16 of them",
    "turboquant": "keys are packed in a basis of their own",
    "ultraquant": "numbers of 4 bits are packed with scales",
}
"""By a part of vLLM's name."""


def stored_type(cache_dtype: str, dtype: torch.dtype) -> torch.dtype:
    """The type of the numbers in a cache that vLLM calls `cache_dtype`, and whose tensor has `dtype`.

    Raises `MoveRefused` for a type whose keys cannot be turned number by number.
    """
    if dtype in FLOAT_TYPES:
        return dtype
    if cache_dtype not in VIEWS or dtype.itemsize != 1:
        reason = next((f": {why}" for part, why in WHY_NOT.items() if part in cache_dtype), "")
        raise MoveRefused(f"kv cache: dtype {cache_dtype} ({dtype}) is not supported{reason}")
    if torch.version.hip is not None:
        raise MoveRefused(f"kv cache: dtype {cache_dtype} is not supported on ROCm, where it has two encodings")
    return VIEWS[cache_dtype]


def view_stored(attention: Any, kv: Tensor) -> Tensor:
    """The cache of one of vLLM's attention layers as the numbers that it holds. No byte is copied.

    Raises what `stored_type` raises.
    """
    return kv.view(stored_type(str(getattr(attention, "kv_cache_dtype", "auto")), kv.dtype))


def check_scales(attention: Any, num_kv_heads: int) -> None:
    """Raise `MoveRefused` where keys of one head have several scales, so that a rotation would mix them."""
    scale = getattr(attention, "_k_scale", None)
    if isinstance(scale, Tensor) and scale.numel() not in (1, num_kv_heads):
        raise MoveRefused(f"kv cache: key scales of shape {tuple(scale.shape)} for {num_kv_heads} heads")
