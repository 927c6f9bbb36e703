"""`move` on row caches, `[num_blocks, num_kv_heads, block_size, row_size]` in any stride order, in Triton.

A row is K and V side by side (`strided`), or MLA's latent and its rotary key (`latent`).

One launch serves all layers of one geometry, whatever their strides, rotations (two thetas, none) and addresses: those
are tables with a row per layer. It serves all segments too: each token names its row of the angle table.

    program (tile of tokens, head, layer):

    strided   |K pairs ..........|K rest|V ............|        latent   |kv_c ..............|k_pe pairs|
                   | turn by cos/sin   |  | copy                             | copy               | turn
              |K pairs ..........|K rest|V ............|                 |kv_c ..............|k_pe pairs|

A token whose segment has delta 0 is stored as loaded, bit for bit. 8-bit floats are widened and narrowed by integer
arithmetic. So every GPU and Triton's interpreter agree on the rounding, and no scale is needed (`layout.py`).

Addresses are 64-bit. Where all of a group's are multiples of 16 bytes, a constant says so to the compiler. It cannot
see through a table, and would else load 2 bytes at a time. Importing this module needs triton. `dispatch` imports it
when a row cache on a GPU appears. Does not check slots (`slots.py` does).
"""

# ruff: noqa: N803, N806 -- Triton's convention: compile-time constants in capitals

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.rope import Rope, angles
from acmserve.kernels.slots import SlotRun

BLOCK_TOKENS = 16
ALIGNMENT = 16  # bytes of the widest load
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Stored as bytes. The number of mantissa bits distinguishes e4m3 from e5m2.
MANTISSA_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}


@triton.jit
def widen(stored, MANTISSA: tl.constexpr):  # type: ignore[no-untyped-def]
    """Float32 of a stored number. Exact. MANTISSA 0: a float type, else the bits of an 8-bit float in a byte."""
    if MANTISSA == 0:
        value = stored.to(tl.float32)
    else:
        bits = stored.to(tl.int32)
        # The same fields in float16. E4m3 has a smaller exponent bias (7, not 15), hence the factor.
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << (10 - MANTISSA))
        value = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        if MANTISSA == 3:
            value = tl.where((bits & 0x7F) == 0x7F, float("nan"), value * 256.0)
    return value


@triton.jit
def narrow(value, DTYPE: tl.constexpr, MANTISSA: tl.constexpr):  # type: ignore[no-untyped-def]
    """The stored number nearest to a float32, ties to even. 8-bit floats saturate at their largest number."""
    if MANTISSA == 0:
        stored = value.to(DTYPE)
    else:
        BIAS: tl.constexpr = (1 << (6 - MANTISSA)) - 1
        LARGEST: tl.constexpr = 448.0 if MANTISSA == 3 else 57344.0
        SMALLEST_NORMAL: tl.constexpr = 0.015625 if MANTISSA == 3 else 0.00006103515625
        SHIFT: tl.constexpr = 23 - MANTISSA
        # Added to this power of two, a float32 is rounded to multiples of the smallest 8-bit number.
        MAGIC: tl.constexpr = 16384.0 if MANTISSA == 3 else 128.0
        MAGIC_BITS: tl.constexpr = 0x46800000 if MANTISSA == 3 else 0x43000000
        magnitude = tl.minimum(tl.abs(value), LARGEST)
        bits = magnitude.to(tl.int32, bitcast=True)
        normal = ((bits + ((1 << (SHIFT - 1)) - 1) + ((bits >> SHIFT) & 1)) >> SHIFT) - ((127 - BIAS) << MANTISSA)
        subnormal = (magnitude + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
        code = tl.where(magnitude < SMALLEST_NORMAL, subnormal, normal)
        code = tl.where(value != value, 0x7F, code)
        stored = (code | ((value.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)
    return stored


@triton.jit
def move_kernel(  # type: ignore[no-untyped-def]
    layers,  # int64 [num_layers, 5]: address; block, head and token stride in elements; row of the rope or -1
    tokens,  # int64 [3, num_tokens]: source slot, destination slot, row of the segment or -1 where its delta is 0
    turns,  # float32 [2, num_ropes, num_segments, HALF]: cos, then sin
    num_tokens,
    num_segments,
    num_turns,  # elements of one half of `turns`
    stride_dim,
    DTYPE: tl.constexpr,
    MANTISSA: tl.constexpr,
    ALIGNED: tl.constexpr,  # elements that every address and stride is a multiple of, or 1
    BLOCK_SIZE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    KEY_START: tl.constexpr,
    HALF: tl.constexpr,  # rot_dim / 2; 0 where no layer turns
    IS_NEOX: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_PAIRS: tl.constexpr,
    TILE_REST: tl.constexpr,
):
    """One program: TILE_TOKENS tokens of one head of one layer."""
    token = tl.program_id(0) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    here = token < num_tokens
    layer = layers + tl.program_id(2) * 5
    base = tl.multiple_of(tl.load(layer).to(tl.pointer_type(DTYPE)), 16 if ALIGNED > 1 else 1)
    stride_block = tl.multiple_of(tl.load(layer + 1), ALIGNED)
    stride_head = tl.multiple_of(tl.load(layer + 2), ALIGNED)
    stride_token = tl.multiple_of(tl.load(layer + 3), ALIGNED)
    src = tl.load(tokens + token, mask=here, other=0)
    dst = tl.load(tokens + num_tokens + token, mask=here, other=0)
    head = tl.program_id(1) * stride_head
    src_row = base + (src // BLOCK_SIZE * stride_block + src % BLOCK_SIZE * stride_token + head)[:, None]
    dst_row = base + (dst // BLOCK_SIZE * stride_block + dst % BLOCK_SIZE * stride_token + head)[:, None]

    if HALF > 0:
        rope = tl.load(layer + 4)
        segment = tl.load(tokens + 2 * num_tokens + token, mask=here, other=-1)
        turning = (tl.minimum(segment, rope) >= 0)[:, None]
        pair = tl.arange(0, TILE_PAIRS)[None, :]
        angle = ((rope * num_segments + segment) * HALF)[:, None] + pair
        wanted = turning & (pair < HALF)
        c = tl.load(turns + angle, mask=wanted, other=1.0)
        s = tl.load(turns + num_turns + angle, mask=wanted, other=0.0)
        if IS_NEOX:
            first = (KEY_START + pair).to(tl.int64) * stride_dim
            second = (KEY_START + HALF + pair).to(tl.int64) * stride_dim
            valid = here[:, None] & (pair < HALF)
            a = tl.load(src_row + first, mask=valid, other=0)
            b = tl.load(src_row + second, mask=valid, other=0)
            wide_a = widen(a, MANTISSA)
            wide_b = widen(b, MANTISSA)
            turned_a = narrow(wide_a * c - wide_b * s, DTYPE, MANTISSA)
            turned_b = narrow(wide_b * c + wide_a * s, DTYPE, MANTISSA)
            tl.store(dst_row + first, tl.where(turning, turned_a, a), mask=valid)
            tl.store(dst_row + second, tl.where(turning, turned_b, b), mask=valid)
        else:
            # Neighbours are loaded together and split in registers: loads with a stride of two are not coalesced.
            dim = tl.arange(0, 2 * TILE_PAIRS)[None, :]
            valid = here[:, None] & (dim < 2 * HALF)
            offset = (KEY_START + dim).to(tl.int64) * stride_dim
            row = tl.load(src_row + offset, mask=valid, other=0)
            wide_a, wide_b = tl.split(tl.reshape(widen(row, MANTISSA), (TILE_TOKENS, TILE_PAIRS, 2)))
            joined = tl.join(wide_a * c - wide_b * s, wide_b * c + wide_a * s)
            turned = narrow(tl.reshape(joined, (TILE_TOKENS, 2 * TILE_PAIRS)), DTYPE, MANTISSA)
            tl.store(dst_row + offset, tl.where(turning, turned, row), mask=valid)

    # The rest of a row is one piece: behind the pairs in `strided`, before them in `latent`.
    REST_START: tl.constexpr = 0 if KEY_START > 0 else 2 * HALF
    rest = tl.arange(0, TILE_REST)[None, :]
    offset = (REST_START + rest).to(tl.int64) * stride_dim
    valid = here[:, None] & (rest < ROW_SIZE - 2 * HALF)
    tl.store(dst_row + offset, tl.load(src_row + offset, mask=valid), mask=valid)


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that one launch serves.

    `table` is int64 `[num_layers, 5]` on the device (see `move_kernel`). `ropes` are the rows of the angle table.
    `aligned` is the number of elements that every address and stride is a multiple of, or 1.
    """

    table: Tensor
    ropes: tuple[Rope, ...]
    first: KVLayer
    aligned: int

    @classmethod
    def of(cls, layers: Sequence[KVLayer]) -> _Group:
        ropes = tuple(dict.fromkeys(layer.rope for layer in layers if layer.rope is not None))
        rows = [
            [layer.kv.data_ptr(), *layer.kv.stride()[:3], -1 if layer.rope is None else ropes.index(layer.rope)]
            for layer in layers
        ]
        size = layers[0].kv.element_size()
        aligned = all(row[0] % ALIGNMENT == 0 and all(s * size % ALIGNMENT == 0 for s in row[1:4]) for row in rows)
        table = torch.tensor(rows, dtype=torch.int64).to(layers[0].kv.device)
        return cls(table, ropes, layers[0], ALIGNMENT // size if aligned else 1)


class StridedMover:
    """Moves KV in a fixed set of row caches of one device. `num_launches` kernels a call."""

    def __init__(self, layers: Sequence[KVLayer]) -> None:
        """Keep the layers' memory alive and build the tables."""
        self._layers = tuple(layers)
        # Layers without rotation join those with one: their rows are copied.
        pairs = {_geometry(layer): _pairing(layer.rope) for layer in layers if layer.rope is None}
        pairs |= {_geometry(layer): _pairing(layer.rope) for layer in layers if layer.rope is not None}
        groups: dict[tuple[object, ...], list[KVLayer]] = {}
        for layer in layers:
            pairing = pairs[_geometry(layer)] if layer.rope is None else _pairing(layer.rope)
            groups.setdefault((_geometry(layer), pairing), []).append(layer)
        self._groups = tuple(_Group.of(members) for members in groups.values())

    @property
    def num_launches(self) -> int:
        """Kernels that one call of `move` starts, whatever the number of tokens and segments."""
        return len(self._groups)

    def move(self, src_slots: Tensor, dst_slots: Tensor, segments: Sequence[SlotRun]) -> None:
        """Move all layers. Arguments as `dispatch.move`."""
        if src_slots.numel() == 0:
            return
        lengths = torch.tensor([segment.end - segment.start for segment in segments])
        rows = torch.tensor([row if segment.delta != 0 else -1 for row, segment in enumerate(segments)])
        tokens = torch.stack((src_slots, dst_slots, rows.repeat_interleave(lengths)))
        on_device = tokens.to(self._layers[0].kv.device)
        for group in self._groups:
            _launch(group, on_device, [segment.delta for segment in segments])


def _geometry(layer: KVLayer) -> tuple[object, ...]:
    """What layers must have in common to share a launch."""
    return layer.layout, layer.kv.dtype, layer.kv.stride(3), layer.kv.device


def _pairing(rope: Rope | None) -> tuple[int, bool]:
    return (0, True) if rope is None else (rope.rot_dim, rope.is_neox)


def _turns(ropes: Sequence[Rope], deltas: Sequence[int]) -> Tensor:
    """float32 `[2, num_ropes, num_segments, rot_dim / 2]`: cos, then sin. One unread number where nothing turns."""
    if not ropes:
        return torch.zeros(1)
    tables = [angles(rope, deltas) for rope in ropes]
    return torch.from_numpy(np.stack(tables, axis=1).astype(np.float32))


def _launch(group: _Group, tokens: Tensor, deltas: Sequence[int]) -> None:
    layer, layout = group.first, group.first.layout
    assert isinstance(layout, StridedLayout)
    half = group.ropes[0].rot_dim // 2 if group.ropes else 0
    turns = _turns(group.ropes, deltas).to(tokens.device)
    num_tokens, num_layers = tokens.shape[1], group.table.shape[0]
    move_kernel[triton.cdiv(num_tokens, BLOCK_TOKENS), layout.num_kv_heads, num_layers](
        group.table,
        tokens,
        turns,
        num_tokens,
        len(deltas),
        turns.numel() // 2,
        layer.kv.stride(3),
        DTYPE=TYPES.get(layer.kv.dtype, tl.uint8),
        MANTISSA=MANTISSA_BITS.get(layer.kv.dtype, 0),
        ALIGNED=group.aligned,
        BLOCK_SIZE=layout.block_size,
        ROW_SIZE=layout.row_size,
        KEY_START=layout.key_start,
        HALF=half,
        IS_NEOX=not group.ropes or group.ropes[0].is_neox,
        TILE_TOKENS=BLOCK_TOKENS,
        TILE_PAIRS=triton.next_power_of_2(max(half, 1)),
        TILE_REST=triton.next_power_of_2(max(layout.row_size - 2 * half, 1)),
    )
