"""The readable twin of every move kernel: any layout, any device, float64 inside, no thought of speed.

It is what the tests compare the kernels with, and what `dispatch` falls back to where no kernel fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from acmserve.kernels.layout import FP8_TYPES, KVLayer, KVLayout
from acmserve.kernels.rope import Rope, angles
from acmserve.kernels.runs import MoveRun

# Elements are copied as integers: bit for bit whatever they hold, and torch cannot index 8-bit floats everywhere.
STORED_AS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def gather(kv: Tensor, layout: KVLayout, slots: Tensor) -> tuple[Tensor, Tensor]:
    """K `[num_slots, num_kv_heads, head_size]` and V `[num_slots, num_kv_heads, value_size]`, in the cache's type."""
    bits = kv.view(STORED_AS[kv.element_size()])
    key = bits[tuple(_addresses(layout, slots, "key"))]
    value = bits[tuple(_addresses(layout, slots, "value"))]
    return key.view(kv.dtype), value.view(kv.dtype)


def scatter(kv: Tensor, layout: KVLayout, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store K and V, shaped and typed as `gather` returns them, in these slots."""
    bits = kv.view(STORED_AS[kv.element_size()])
    bits[tuple(_addresses(layout, slots, "key"))] = key.view(bits.dtype)
    bits[tuple(_addresses(layout, slots, "value"))] = value.view(bits.dtype)


def rotate(key: Tensor, rope: Rope, delta: int) -> Tensor:
    """Keys `[..., head_size]` turned by `delta` positions, in float64."""
    cos, sin = (torch.from_numpy(table[0]).to(key.device) for table in angles(rope, [delta]))
    turned = key.to(torch.float64, copy=True)
    half = rope.rot_dim // 2
    first = slice(0, half) if rope.is_neox else slice(0, rope.rot_dim, 2)
    second = slice(half, rope.rot_dim) if rope.is_neox else slice(1, rope.rot_dim, 2)
    a, b = turned[..., first].clone(), turned[..., second].clone()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = b * cos + a * sin
    return turned


def narrow(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values in a storage type: round to nearest. 8-bit types saturate, as vLLM's own quantisation does."""
    if dtype not in FP8_TYPES:
        return values.to(dtype)
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)


def move(layers: Sequence[KVLayer], runs: Sequence[MoveRun], block_size: int) -> None:
    """Copy K and V, K turned by each run's delta (arguments as `dispatch.LayerMover.move`, unchecked)."""
    for layer in layers:
        for run in runs:
            src = torch.from_numpy(run.source.slots(block_size)).to(layer.kv.device)
            dst = torch.from_numpy(run.destination.slots(block_size)).to(layer.kv.device)
            key, value = gather(layer.kv, layer.layout, src)
            if layer.rope is not None and run.delta != 0:
                key = narrow(rotate(key, layer.rope, run.delta), key.dtype)
            scatter(layer.kv, layer.layout, dst, key, value)


def _addresses(layout: KVLayout, slots: Tensor, which: str) -> list[Tensor]:
    """Indices into `[num_blocks, num_kv_heads, block_size, row_size]`, broadcast to `[n, heads, width of K or V]`."""
    block = (slots // layout.block_size)[:, None, None]
    head = torch.arange(layout.num_kv_heads, device=slots.device)[None, :, None]
    t = (slots % layout.block_size)[:, None, None]
    size = layout.head_size if which == "key" else layout.value_size
    d = torch.arange(size, device=slots.device)[None, None, :]
    flat = layout.key_index(t, d) if which == "key" else layout.value_index(t, d)
    return [block, head, flat // layout.row_size, flat % layout.row_size]
