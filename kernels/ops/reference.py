"""The readable twin of every move kernel: any layout, any device, float64 inside, no thought of speed.

It is what the tests compare the kernels with, and what `dispatch` falls back to where no kernel fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from acmserve.kernels.layout import KVLayer, KVLayout
from acmserve.kernels.rope import Rope, angles
from acmserve.kernels.slots import Segment


def gather(kv: Tensor, layout: KVLayout, slots: Tensor) -> tuple[Tensor, Tensor]:
    """K and V of these slots, each `[num_slots, num_kv_heads, head_size]`, in the cache's type."""
    (block, head, *key_at), value_at = _addresses(layout, slots, "key"), _addresses(layout, slots, "value")[2:]
    return kv[block, head, *key_at], kv[block, head, *value_at]


def scatter(kv: Tensor, layout: KVLayout, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store K and V, each `[num_slots, num_kv_heads, head_size]`, in these slots."""
    kv[tuple(_addresses(layout, slots, "key"))] = key
    kv[tuple(_addresses(layout, slots, "value"))] = value


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


def move(layers: Sequence[KVLayer], src_slots: Tensor, dst_slots: Tensor, segments: Sequence[Segment]) -> None:
    """Copy K and V between slots, K turned by each segment's delta (arguments as `dispatch.move`, unchecked)."""
    for layer in layers:
        for segment in segments:
            src = src_slots[segment.start : segment.end].to(layer.kv.device)
            dst = dst_slots[segment.start : segment.end].to(layer.kv.device)
            key, value = gather(layer.kv, layer.layout, src)
            if layer.rope is not None and segment.delta != 0:
                key = rotate(key, layer.rope, segment.delta).to(key.dtype)
            scatter(layer.kv, layer.layout, dst, key, value)


def _addresses(layout: KVLayout, slots: Tensor, which: str) -> list[Tensor]:
    """Indices into `[num_blocks, num_kv_heads, block_size, 2 * head_size]`, broadcast to `[n, heads, head_size]`."""
    block = (slots // layout.block_size)[:, None, None]
    head = torch.arange(layout.num_kv_heads, device=slots.device)[None, :, None]
    t = (slots % layout.block_size)[:, None, None]
    d = torch.arange(layout.head_size, device=slots.device)[None, None, :]
    flat = layout.key_index(t, d) if which == "key" else layout.value_index(t, d)
    width = 2 * layout.head_size
    return [block, head, flat // width, flat % width]
