"""`move` on row caches, `[num_blocks, num_kv_heads, block_size, row_size]` in any stride order, in Triton.

A row is K and V side by side (`strided`), or MLA's latent and its rotary key (`latent`).

One launch serves all layers of one geometry, whatever their strides, rotations (two thetas, none) and addresses: those
are tables with a row per layer. It serves all runs too: they are rows of one more table, with their block ids behind
them. The table is made of blocks, and it is the kernel that counts tokens. So a step has one launch for all requests.
It has no more with several KV cache groups of one geometry: the row of a run tells which layers are its own.

    program (tile of tokens, TILE_HEADS heads, layer):

    strided   |K pairs ..........|K rest|V ............|        latent   |kv_c ..............|k_pe pairs|
                   | turn by cos/sin   |  | copy                             | copy               | turn
              |K pairs ..........|K rest|V ............|                 |kv_c ..............|k_pe pairs|

Programs that follow each other have the other heads of the same tokens. In vLLM's layouts by token these lie side by
side in memory. In the other order an H200 took 1.6 times as long for 128K tokens.

A token whose run has delta 0 is stored as loaded, bit for bit. 8-bit floats are widened and narrowed by instructions
of the device, or by integer arithmetic where it has none. Both round every float32 alike, which a card is asked for
(`benchmarks/gpu/kernel/rounding.py`). So every GPU and Triton's interpreter agree. No scale is needed (`layout.py`).

Addresses are 64-bit. Where all of a group's are multiples of 16 bytes, a constant says so to the compiler. It cannot
see through a table, and would else load 2 bytes at a time. Importing this module needs triton. `dispatch` imports it
when a row cache on a GPU appears. Does not check runs (`runs.py` does).

The host never waits for the GPU: tables are copied from pinned memory, behind what the stream does already. torch
keeps such memory until the copy is through.
"""

# ruff: noqa: N803, N806 -- Triton's convention: compile-time constants in capitals

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor

from acmserve.kernels.layer_group import GroupRuns, LayerGroups
from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.movers.run_table import TILE_TOKENS, run_table
from acmserve.kernels.movers.strided_launch import StridedLaunch, geometry_of, pairing_of
from acmserve.kernels.rope import Rope, angles

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
TILE_HEADS, NUM_WARPS = 2, 4  # the fastest of seven tiles on an H200, in bfloat16 and in e4m3
# Stored as bytes. The number of mantissa bits distinguishes e4m3 from e5m2.
MANTISSA_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}


@triton.jit
def widen(stored, MANTISSA: tl.constexpr, IS_NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Float32 of a stored number. Exact. MANTISSA 0: a float type, else the bits of an 8-bit float in a byte.

    IS_NATIVE: by the device's own conversion.
    """
    if MANTISSA == 0:
        value = stored.to(tl.float32)
    elif IS_NATIVE:
        value = stored.to(tl.float8e4nv if MANTISSA == 3 else tl.float8e5, bitcast=True).to(tl.float32)
    else:
        bits = stored.to(tl.int32)
        # The same fields in float16. E4m3 has a smaller exponent bias (7, not 15), hence the factor.
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << (10 - MANTISSA))
        value = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        if MANTISSA == 3:
            value = tl.where((bits & 0x7F) == 0x7F, float("nan"), value * 256.0)
    return value


@triton.jit
def narrow(value, DTYPE: tl.constexpr, MANTISSA: tl.constexpr, IS_NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The stored number nearest to a float32, ties to even. 8-bit floats saturate at their largest number.

    IS_NATIVE: by the device's own conversion. NaN has another sign then.
    """
    if MANTISSA == 0:
        stored = value.to(DTYPE)
    elif IS_NATIVE:
        stored = value.to(tl.float8e4nv if MANTISSA == 3 else tl.float8e5).to(tl.uint8, bitcast=True)
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


@triton.jit(do_not_specialize=["num_runs", "num_tiles", "num_turns"])
def move_kernel(  # type: ignore[no-untyped-def]
    layers,  # int64 [num_layers, 5]: address, then block, head and token stride in elements, then row of the rope or -1
    spans,  # int64 [num_groups, 2]: a group's first row in `layers`, and how many
    table,  # int64, see `run_table.py`
    turns,  # float32 [2, num_ropes, num_runs, HALF]: cos, then sin
    num_runs,
    num_tiles,
    num_turns,  # elements of one half of `turns`
    stride_dim,
    DTYPE: tl.constexpr,
    MANTISSA: tl.constexpr,
    IS_NATIVE: tl.constexpr,  # whether the device converts 8-bit floats itself
    ALIGNED: tl.constexpr,  # elements that every address and stride is a multiple of, or 1
    IS_SPLIT: tl.constexpr,  # whether the layers are those of several groups
    RUN_BLOCK: tl.constexpr,  # tokens of a block of the runs
    BLOCK_SIZE: tl.constexpr,  # tokens of a block of the cache, of which RUN_BLOCK is a multiple
    NUM_HEADS: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    KEY_START: tl.constexpr,
    HALF: tl.constexpr,  # rot_dim / 2, or 0 where no layer turns
    IS_NEOX: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_PAIRS: tl.constexpr,
    TILE_REST: tl.constexpr,
):
    """One program: TILE_TOKENS tokens of one run, TILE_HEADS heads of one layer.

    Neighbours have the other heads of these tokens. Of a group with few layers some programs have nothing to do.
    """
    HEAD_TILES: tl.constexpr = (NUM_HEADS + TILE_HEADS - 1) // TILE_HEADS
    NUM_ROWS: tl.constexpr = TILE_TOKENS * TILE_HEADS
    row = tl.arange(0, NUM_ROWS)
    head_at = tl.program_id(0) % HEAD_TILES * TILE_HEADS + row % TILE_HEADS
    tile = table + num_runs * 7 + tl.program_id(0) // HEAD_TILES
    index = tl.load(tile)
    run = table + index * 7
    token = tl.load(tile + num_tiles) + row // TILE_HEADS
    num_tokens = tl.load(run + 4)
    layer = layers + tl.program_id(1) * 5
    if IS_SPLIT:
        span = spans + tl.load(run + 6) * 2
        num_layers = tl.load(span + 1)
        num_tokens = tl.where(tl.program_id(1) < num_layers, num_tokens, 0)
        layer = layers + (tl.load(span) + tl.minimum(tl.program_id(1), num_layers - 1)) * 5
    here = (token < num_tokens) & (head_at < NUM_HEADS)
    base = tl.multiple_of(tl.load(layer).to(tl.pointer_type(DTYPE)), 16 if ALIGNED > 1 else 1)
    stride_block = tl.multiple_of(tl.load(layer + 1), ALIGNED)
    stride_head = tl.multiple_of(tl.load(layer + 2), ALIGNED)
    stride_token = tl.multiple_of(tl.load(layer + 3), ALIGNED)
    src_at = tl.load(run + 1) + token
    dst_at = tl.load(run + 3) + token
    src = tl.load(table + tl.load(run) + src_at // RUN_BLOCK, mask=here, other=0) * RUN_BLOCK + src_at % RUN_BLOCK
    dst = tl.load(table + tl.load(run + 2) + dst_at // RUN_BLOCK, mask=here, other=0) * RUN_BLOCK + dst_at % RUN_BLOCK
    head = head_at * stride_head
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
            wide_a = widen(a, MANTISSA, IS_NATIVE)
            wide_b = widen(b, MANTISSA, IS_NATIVE)
            turned_a = narrow(wide_a * c - wide_b * s, DTYPE, MANTISSA, IS_NATIVE)
            turned_b = narrow(wide_b * c + wide_a * s, DTYPE, MANTISSA, IS_NATIVE)
            tl.store(dst_row + first, tl.where(turning, turned_a, a), mask=valid)
            tl.store(dst_row + second, tl.where(turning, turned_b, b), mask=valid)
        else:
            # Neighbours are loaded together and split in registers: loads with a stride of two are not coalesced.
            dim = tl.arange(0, 2 * TILE_PAIRS)[None, :]
            valid = here[:, None] & (dim < 2 * HALF)
            offset = (KEY_START + dim).to(tl.int64) * stride_dim
            key = tl.load(src_row + offset, mask=valid, other=0)
            wide_a, wide_b = tl.split(tl.reshape(widen(key, MANTISSA, IS_NATIVE), (NUM_ROWS, TILE_PAIRS, 2)))
            joined = tl.join(wide_a * c - wide_b * s, wide_b * c + wide_a * s)
            turned = narrow(tl.reshape(joined, (NUM_ROWS, 2 * TILE_PAIRS)), DTYPE, MANTISSA, IS_NATIVE)
            tl.store(dst_row + offset, tl.where(dim < 2 * num_pairs, turned, key), mask=valid)

    # The rest of a row is one piece: behind the pairs in `strided`, before them in `latent`.
    REST_START: tl.constexpr = 0 if KEY_START > 0 else 2 * HALF
    rest = tl.arange(0, TILE_REST)[None, :]
    offset = (REST_START + rest).to(tl.int64) * stride_dim
    valid = here[:, None] & (rest < ROW_SIZE - 2 * HALF)
    tl.store(dst_row + offset, tl.load(src_row + offset, mask=valid), mask=valid)


class StridedMover:
    """Moves KV in a fixed set of row caches of one device. `num_launches` kernels a call at most."""

    def __init__(self, groups: LayerGroups) -> None:
        """Keep the layers' memory alive and build the tables."""
        self._groups = dict(groups)
        self._places = {group: place for place, group in enumerate(self._groups)}
        found = [(number, group, layer) for number, group in self._groups.items() for layer in group.layers]
        # Layers without rotation join those with one: their rows are copied.
        pairs = {geometry_of(layer, group): pairing_of(layer.rope) for _, group, layer in found if layer.rope is None}
        pairs |= {
            geometry_of(layer, group): pairing_of(layer.rope) for _, group, layer in found if layer.rope is not None
        }
        launches: dict[tuple[object, ...], dict[int, list[KVLayer]]] = {}
        for number, group, layer in found:
            geometry = geometry_of(layer, group)
            pairing = pairs[geometry] if layer.rope is None else pairing_of(layer.rope)
            launches.setdefault((geometry, pairing), {}).setdefault(number, []).append(layer)
        self._launches = tuple(
            StridedLaunch.of(members, self._places, self._groups[min(members)].block_size)
            for members in launches.values()
        )

    @property
    def num_launches(self) -> int:
        """Kernels that one call of `move` starts, whatever the number of tokens and runs."""
        return len(self._launches)

    def move(self, runs: GroupRuns) -> None:
        """Move all layers. Arguments as `dispatch.GroupMover.move`."""
        sent: dict[tuple[int, ...], tuple[Tensor, int]] = {}
        for launch in self._launches:
            moved = {group: runs[group] for group in launch.num_layers if runs.get(group)}
            key = tuple(moved)
            if not key:
                continue
            if key not in sent:
                table, num_tiles = run_table([(self._places[group], run) for group in key for run in moved[group]])
                sent[key] = _send(table, launch.table.device), num_tiles
            deltas = [run.delta for found in moved.values() for run in found]
            _start(launch, *sent[key], deltas, max(launch.num_layers[group] for group in key))


def _send(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device, for the kernels behind this call on its stream."""
    here = torch.from_numpy(values)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


def _turns(ropes: Sequence[Rope], deltas: Sequence[int]) -> NDArray[np.float32]:
    """`[2, num_ropes, num_runs, rot_dim / 2]`: cos, then sin. One unread number where nothing turns."""
    if not ropes:
        return np.zeros(1, dtype=np.float32)
    return np.stack([angles(rope, deltas) for rope in ropes], axis=1).astype(np.float32)


def _start(launch: StridedLaunch, table: Tensor, num_tiles: int, deltas: Sequence[int], num_layers: int) -> None:
    layer, layout = launch.first, launch.first.layout
    assert isinstance(layout, StridedLayout)
    half = launch.ropes[0].rot_dim // 2 if launch.ropes else 0
    turns = _send(_turns(launch.ropes, deltas), table.device)
    tile_heads = min(TILE_HEADS, triton.next_power_of_2(layout.num_kv_heads))
    move_kernel[num_tiles * -(-layout.num_kv_heads // tile_heads), num_layers](
        launch.table,
        launch.spans,
        table,
        turns,
        len(deltas),
        num_tiles,
        turns.numel() // 2,
        layer.kv.stride(3),
        DTYPE=TYPES.get(layer.kv.dtype, tl.uint8),
        MANTISSA=MANTISSA_BITS.get(layer.kv.dtype, 0),
        IS_NATIVE=launch.is_native,
        ALIGNED=launch.aligned,
        IS_SPLIT=len(launch.num_layers) > 1,
        RUN_BLOCK=launch.block_size,
        BLOCK_SIZE=layout.block_size,
        NUM_HEADS=layout.num_kv_heads,
        ROW_SIZE=layout.row_size,
        KEY_START=layout.key_start,
        HALF=half,
        IS_NEOX=not launch.ropes or launch.ropes[0].is_neox,
        TILE_TOKENS=TILE_TOKENS,
        TILE_HEADS=tile_heads,
        TILE_PAIRS=triton.next_power_of_2(max(half, 1)),
        TILE_REST=triton.next_power_of_2(max(layout.row_size - 2 * half, 1)),
        num_warps=NUM_WARPS,
    )
