"""`move` on row caches, `[num_blocks, num_kv_heads, block_size, row_size]` in any stride order, in Triton.

A row is K and V side by side (`strided`), or MLA's latent and its rotary key (`latent`).

One launch serves all layers of one geometry, whatever their strides, rotations (two thetas, none) and addresses: those
are tables with a row per layer. It serves all runs too: they are rows of one more table, with their block ids behind
them. The table is made of blocks, and it is the kernel that counts tokens.

    program (tile of tokens, head, layer):

    strided   |K pairs ..........|K rest|V ............|        latent   |kv_c ..............|k_pe pairs|
                   | turn by cos/sin   |  | copy                             | copy               | turn
              |K pairs ..........|K rest|V ............|                 |kv_c ..............|k_pe pairs|

A token whose run has delta 0 is stored as loaded, bit for bit. 8-bit floats are widened and narrowed by integer
arithmetic. So every GPU and Triton's interpreter agree on the rounding, and no scale is needed (`layout.py`).

Addresses are 64-bit. Where all of a group's are multiples of 16 bytes, a constant says so to the compiler. It cannot
see through a table, and would else load 2 bytes at a time. Importing this module needs triton. `dispatch` imports it
when a row cache on a GPU appears. Does not check runs (`runs.py` does).

The host never waits for the GPU: tables are copied from pinned memory, behind what the stream does already. torch
keeps such memory until the copy is through.
"""

# ruff: noqa: N803, N806 -- Triton's convention: compile-time constants in capitals

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor

from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.rope import Rope, angles
from acmserve.kernels.runs import MoveRun

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


@triton.jit(do_not_specialize=["num_runs", "num_turns"])
def move_kernel(  # type: ignore[no-untyped-def]
    layers,  # int64 [num_layers, 5]: address; block, head and token stride in elements; row of the rope or -1
    table,  # int64, see `run_table`
    turns,  # float32 [2, num_ropes, num_runs, HALF]: cos, then sin
    num_runs,
    num_turns,  # elements of one half of `turns`
    stride_dim,
    DTYPE: tl.constexpr,
    MANTISSA: tl.constexpr,
    ALIGNED: tl.constexpr,  # elements that every address and stride is a multiple of, or 1
    RUN_BLOCK: tl.constexpr,  # tokens of a block of the runs
    BLOCK_SIZE: tl.constexpr,  # tokens of a block of the cache; RUN_BLOCK is a multiple
    ROW_SIZE: tl.constexpr,
    KEY_START: tl.constexpr,
    HALF: tl.constexpr,  # rot_dim / 2; 0 where no layer turns
    IS_NEOX: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_PAIRS: tl.constexpr,
    TILE_REST: tl.constexpr,
):
    """One program: TILE_TOKENS tokens of one run, one head of one layer."""
    layer = layers + tl.program_id(2) * 5
    base = tl.multiple_of(tl.load(layer).to(tl.pointer_type(DTYPE)), 16 if ALIGNED > 1 else 1)
    stride_block = tl.multiple_of(tl.load(layer + 1), ALIGNED)
    stride_head = tl.multiple_of(tl.load(layer + 2), ALIGNED)
    stride_token = tl.multiple_of(tl.load(layer + 3), ALIGNED)
    tile = table + num_runs * 6 + tl.program_id(0)
    index = tl.load(tile)
    run = table + index * 6
    token = tl.load(tile + tl.num_programs(0)) + tl.arange(0, TILE_TOKENS)
    here = token < tl.load(run + 4)
    src_at = tl.load(run + 1) + token
    dst_at = tl.load(run + 3) + token
    src = tl.load(table + tl.load(run) + src_at // RUN_BLOCK, mask=here, other=0) * RUN_BLOCK + src_at % RUN_BLOCK
    dst = tl.load(table + tl.load(run + 2) + dst_at // RUN_BLOCK, mask=here, other=0) * RUN_BLOCK + dst_at % RUN_BLOCK
    head = tl.program_id(1) * stride_head
    src_row = base + (src // BLOCK_SIZE * stride_block + src % BLOCK_SIZE * stride_token + head)[:, None]
    dst_row = base + (dst // BLOCK_SIZE * stride_block + dst % BLOCK_SIZE * stride_token + head)[:, None]

    if HALF > 0:
        rope = tl.load(layer + 4)
        num_pairs = tl.where((tl.load(run + 5) != 0) & (rope >= 0), HALF, 0)
        pair = tl.arange(0, TILE_PAIRS)[None, :]
        angle = (rope * num_runs + index) * HALF + pair
        turning = pair < num_pairs
        c = tl.load(turns + angle, mask=turning, other=1.0)
        s = tl.load(turns + num_turns + angle, mask=turning, other=0.0)
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
            tl.store(dst_row + offset, tl.where(dim < 2 * num_pairs, turned, row), mask=valid)

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

    def __init__(self, layers: Sequence[KVLayer], block_size: int) -> None:
        """Keep the layers' memory alive and build the tables. `block_size` is that of the runs' blocks, in tokens."""
        self._block_size = block_size
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
        """Kernels that one call of `move` starts, whatever the number of tokens and runs."""
        return len(self._groups)

    def move(self, runs: Sequence[MoveRun]) -> None:
        """Move all layers. Arguments as `dispatch.LayerMover.move`."""
        table, num_tiles = run_table(runs)
        on_device = _send(table, self._layers[0].kv.device)
        for group in self._groups:
            _launch(group, on_device, num_tiles, [run.delta for run in runs], self._block_size)


def run_table(runs: Sequence[MoveRun]) -> tuple[NDArray[np.int64], int]:
    """What a launch knows of the runs, and its number of tiles.

    run      6 numbers a run     where its source block ids begin in the table, offset in the first one,
                                 the same for its destination, number of tokens, delta
    tile     one number a tile   the run that it belongs to
    first    one number a tile   its first token, counted in the run
    ids      source and destination block ids of each run
    """
    num_tiles = np.array([-(-run.num_tokens // BLOCK_TOKENS) for run in runs], dtype=np.int64)
    total = int(num_tiles.sum())
    tiles = np.repeat(np.arange(len(runs), dtype=np.int64), num_tiles)
    first = BLOCK_TOKENS * (np.arange(total, dtype=np.int64) - np.repeat(num_tiles.cumsum() - num_tiles, num_tiles))
    rows, ids = [], []
    end = 6 * len(runs) + 2 * total
    for run in runs:
        src_at, dst_at = end, end + len(run.src_block_ids)
        end = dst_at + len(run.dst_block_ids)
        rows.append([src_at, run.src_offset, dst_at, run.dst_offset, run.num_tokens, run.delta])
        ids += [np.asarray(run.src_block_ids, dtype=np.int64), np.asarray(run.dst_block_ids, dtype=np.int64)]
    return np.concatenate([np.array(rows, dtype=np.int64).reshape(-1), tiles, first, *ids]), total


def _send(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device, for the kernels behind this call on its stream."""
    here = torch.from_numpy(values)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


def _geometry(layer: KVLayer) -> tuple[object, ...]:
    """What layers must have in common to share a launch."""
    return layer.layout, layer.kv.dtype, layer.kv.stride(3), layer.kv.device


def _pairing(rope: Rope | None) -> tuple[int, bool]:
    return (0, True) if rope is None else (rope.rot_dim, rope.is_neox)


def _turns(ropes: Sequence[Rope], deltas: Sequence[int]) -> NDArray[np.float32]:
    """`[2, num_ropes, num_runs, rot_dim / 2]`: cos, then sin. One unread number where nothing turns."""
    if not ropes:
        return np.zeros(1, dtype=np.float32)
    return np.stack([angles(rope, deltas) for rope in ropes], axis=1).astype(np.float32)


def _launch(group: _Group, table: Tensor, num_tiles: int, deltas: Sequence[int], block_size: int) -> None:
    layer, layout = group.first, group.first.layout
    assert isinstance(layout, StridedLayout)
    half = group.ropes[0].rot_dim // 2 if group.ropes else 0
    turns = _send(_turns(group.ropes, deltas), table.device)
    move_kernel[num_tiles, layout.num_kv_heads, group.table.shape[0]](
        group.table,
        table,
        turns,
        len(deltas),
        turns.numel() // 2,
        layer.kv.stride(3),
        DTYPE=TYPES.get(layer.kv.dtype, tl.uint8),
        MANTISSA=MANTISSA_BITS.get(layer.kv.dtype, 0),
        ALIGNED=group.aligned,
        RUN_BLOCK=block_size,
        BLOCK_SIZE=layout.block_size,
        ROW_SIZE=layout.row_size,
        KEY_START=layout.key_start,
        HALF=half,
        IS_NEOX=not group.ropes or group.ropes[0].is_neox,
        TILE_TOKENS=BLOCK_TOKENS,
        TILE_PAIRS=triton.next_power_of_2(max(half, 1)),
        TILE_REST=triton.next_power_of_2(max(layout.row_size - 2 * half, 1)),
    )
