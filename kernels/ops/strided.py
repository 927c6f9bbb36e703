"""`move` on strided KV caches, `[num_blocks, num_kv_heads, block_size, 2 * head_size]` in any stride order, in Triton.

One launch serves all layers of a group (equal geometry, type and rope) and all segments: the layers' base addresses are
a table, and each token carries the number of its segment, which selects a row of the angle tables.

    program (tile of tokens, head, layer):
        src slot --> K pairs --- turn by cos/sin[segment] --> dst slot
                     K rest  --------------------------->
                     V       --------------------------->

A token whose segment has delta 0 is stored as loaded, bit for bit. Importing this module needs triton; `dispatch`
imports it when a strided layer on a GPU appears. Does not check slots (`slots.py` does).
"""

# ruff: noqa: N803 -- Triton's convention: compile-time constants in capitals

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from acmserve.kernels.layout import KVLayer
from acmserve.kernels.rope import Rope, angles
from acmserve.kernels.slots import Segment

BLOCK_TOKENS = 16
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def move_kernel(  # type: ignore[no-untyped-def]
    bases,  # int64 [num_layers]: addresses
    src_slots,  # int64 [num_tokens]
    dst_slots,  # int64 [num_tokens]
    token_segments,  # int32 [num_tokens]
    segment_turns,  # int32 [num_segments]: 0 where the delta is 0
    cos,  # float32 [num_segments, HALF]
    sin,  # float32 [num_segments, HALF]
    num_tokens,
    stride_block,
    stride_head,
    stride_token,
    stride_dim,
    DTYPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,  # rot_dim / 2; 0 for layers without rotation
    IS_NEOX: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_PAIRS: tl.constexpr,
    TILE_DIMS: tl.constexpr,
):
    """One program: TILE_TOKENS tokens of one head of one layer."""
    token = tl.program_id(0) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    here = token < num_tokens
    base = tl.load(bases + tl.program_id(2)).to(tl.pointer_type(DTYPE))
    head = tl.program_id(1).to(tl.int64) * stride_head
    src = tl.load(src_slots + token, mask=here, other=0)
    dst = tl.load(dst_slots + token, mask=here, other=0)
    src_row = (base + src // BLOCK_SIZE * stride_block + head + src % BLOCK_SIZE * stride_token)[:, None]
    dst_row = (base + dst // BLOCK_SIZE * stride_block + head + dst % BLOCK_SIZE * stride_token)[:, None]

    if HALF > 0:
        segment = tl.load(token_segments + token, mask=here, other=0)
        turns = tl.load(segment_turns + segment, mask=here, other=0)[:, None] != 0
        pair = tl.arange(0, TILE_PAIRS)[None, :]
        valid = here[:, None] & (pair < HALF)
        c = tl.load(cos + segment[:, None] * HALF + pair, mask=valid, other=0.0)
        s = tl.load(sin + segment[:, None] * HALF + pair, mask=valid, other=0.0)
        first = (pair if IS_NEOX else pair * 2) * stride_dim
        second = (pair + HALF if IS_NEOX else pair * 2 + 1) * stride_dim
        a = tl.load(src_row + first, mask=valid, other=0.0)
        b = tl.load(src_row + second, mask=valid, other=0.0)
        wide_a = a.to(tl.float32)
        wide_b = b.to(tl.float32)
        tl.store(dst_row + first, tl.where(turns, (wide_a * c - wide_b * s).to(DTYPE), a), mask=valid)
        tl.store(dst_row + second, tl.where(turns, (wide_b * c + wide_a * s).to(DTYPE), b), mask=valid)

    # K's unrotated dimensions and V are neighbours in a token's row.
    dim = tl.arange(0, TILE_DIMS)[None, :] + 2 * HALF
    valid = here[:, None] & (dim < 2 * HEAD_SIZE)
    tl.store(dst_row + dim * stride_dim, tl.load(src_row + dim * stride_dim, mask=valid), mask=valid)


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that one launch serves; `bases` is int64 `[num_layers]` on the device."""

    bases: Tensor
    first: KVLayer
    num_layers: int


class StridedMover:
    """Moves KV in a fixed set of strided layers of one device."""

    def __init__(self, layers: Sequence[KVLayer]) -> None:
        """Keep the layers' memory alive and build the address tables."""
        self._layers = tuple(layers)
        groups: dict[tuple[object, ...], list[KVLayer]] = {}
        for layer in layers:
            key = (layer.layout, layer.rope, layer.kv.dtype, layer.kv.stride(), layer.kv.device)
            groups.setdefault(key, []).append(layer)
        self._groups = tuple(
            _Group(
                torch.tensor([layer.kv.data_ptr() for layer in members], dtype=torch.int64).to(members[0].kv.device),
                members[0],
                len(members),
            )
            for members in groups.values()
        )

    def move(self, src_slots: Tensor, dst_slots: Tensor, segments: Sequence[Segment]) -> None:
        """Move all layers; arguments as `dispatch.move`."""
        if src_slots.numel() == 0:
            return
        lengths = torch.tensor([segment.end - segment.start for segment in segments])
        token_segments = torch.arange(len(segments), dtype=torch.int32).repeat_interleave(lengths)
        turns = torch.tensor([int(segment.delta != 0) for segment in segments], dtype=torch.int32)
        device = self._layers[0].kv.device
        on_device = tuple(tensor.to(device) for tensor in (src_slots, dst_slots, token_segments, turns))
        tables: dict[Rope | None, tuple[Tensor, Tensor]] = {}
        for group in self._groups:
            rope = group.first.rope
            if rope not in tables:
                tables[rope] = _tables(rope, segments, device)
            _launch(group, on_device, tables[rope])


def _tables(rope: Rope | None, segments: Sequence[Segment], device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 `[num_segments, rot_dim / 2]`; one unread element for layers without rotation."""
    if rope is None:
        return torch.zeros(1, device=device), torch.zeros(1, device=device)
    cos, sin = angles(rope, [segment.delta for segment in segments])
    return (
        torch.from_numpy(cos).to(torch.float32).to(device),
        torch.from_numpy(sin).to(torch.float32).to(device),
    )


def _launch(group: _Group, tokens: tuple[Tensor, ...], tables: tuple[Tensor, Tensor]) -> None:
    layer, layout = group.first, group.first.layout
    half = 0 if layer.rope is None else layer.rope.rot_dim // 2
    num_tokens = tokens[0].numel()
    grid = (triton.cdiv(num_tokens, BLOCK_TOKENS), layout.num_kv_heads, group.num_layers)
    move_kernel[grid](
        group.bases,
        *tokens,
        *tables,
        num_tokens,
        *layer.kv.stride(),
        DTYPE=TYPES[layer.kv.dtype],
        BLOCK_SIZE=layout.block_size,
        HEAD_SIZE=layout.head_size,
        HALF=half,
        IS_NEOX=layer.rope is not None and layer.rope.is_neox,
        TILE_TOKENS=BLOCK_TOKENS,
        TILE_PAIRS=triton.next_power_of_2(max(half, 1)),
        TILE_DIMS=triton.next_power_of_2(2 * (layout.head_size - half)),
    )
