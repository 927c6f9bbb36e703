"""Bandwidth of the CPU move beside memcpy of the same bytes on the same threads: `acmserve bench micro kernel`.

Each row moves tokens in every layer of a SmolLM2-135M-shaped KV cache (30 layers, 3 KV heads, head size 64, blocks of
128). memcpy copies one contiguous piece of memory per thread, the best case for it. Neither side finds its bytes in
the caches. Two distances between offsets are measured, because a move reads and writes different parts of two blocks.
They are `move` (from 100 to 20) and `odd` (from 31 to 0, lines and words shifted against each other).

The gate: before a move is timed, its result equals the reference, element by element, in the first and the last layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from acmserve.kernels.dispatch import LayerMover
from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope
from acmserve.kernels.runs import MoveRun

NUM_TOKENS, NUM_LAYERS, NUM_HEADS, HEAD_SIZE, BLOCK_SIZE = 3000, 30, 3, 64, 128
TYPES = {
    "float32 vec": (torch.float32, CpuVecLayout),
    "bfloat16 vec": (torch.bfloat16, CpuVecLayout),
    "float16 vec": (torch.float16, CpuVecLayout),
    "bfloat16 amx": (torch.bfloat16, CpuAmxLayout),
}
# Delta, offset in the first source block, offset in the first destination block.
MOVES = {"copy": (0, 0, 0), "move": (-1980, 100, 20), "odd": (-31, 31, 0)}
# Twice the storage type's half ulp, relative to the key's norm.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


@pytest.fixture(scope="module", params=TYPES)
def cache(request: Any) -> tuple[str, list[KVLayer]]:
    """One KV cache type and its layers, filled once."""
    return request.param, make_layers(request.param)


def make_layers(kv: str) -> list[KVLayer]:
    """Room for the tokens before a move, and behind it."""
    dtype, kind = TYPES[kv]
    inv_freq = 10_000.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    rope = Rope(tuple(inv_freq.tolist()), HEAD_SIZE, True)
    layout = kind(NUM_HEADS, BLOCK_SIZE, HEAD_SIZE)
    shape = (2 * (NUM_TOKENS // BLOCK_SIZE + 2), NUM_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
    generator = torch.Generator().manual_seed(1)
    return [KVLayer(torch.randn(shape, generator=generator).to(dtype), layout, rope) for _ in range(NUM_LAYERS)]


@pytest.mark.parametrize("side", ["move", "memcpy"])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("what", MOVES)
def bench_kernel(benchmark: Any, cache: tuple[str, list[KVLayer]], what: str, num_threads: int, side: str) -> None:
    """A move, or memcpy of as many bytes."""
    kv, layers = cache
    num_bytes = 2 * NUM_TOKENS * NUM_LAYERS * NUM_HEADS * HEAD_SIZE * layers[0].kv.element_size()
    benchmark.group = f"{kv}, {what}, {num_threads} threads"
    benchmark.extra_info |= {"kv": kv, "what": what, "num_tokens": NUM_TOKENS, "num_threads": num_threads}
    benchmark.extra_info |= {"side": side, "num_bytes": num_bytes}
    if side == "memcpy":
        with memcpy(num_bytes, num_threads) as copy:
            benchmark(copy)
        return
    delta, src_offset, dst_offset = MOVES[what]
    num_src, num_dst = (-(-(offset + NUM_TOKENS) // BLOCK_SIZE) for offset in (src_offset, dst_offset))
    blocks = tuple(range(num_src)), tuple(range(num_src, num_src + num_dst))
    run = MoveRun(blocks[0], src_offset, blocks[1], dst_offset, NUM_TOKENS, delta)
    mover = LayerMover(layers, num_threads)
    mover.move([run])
    assert all(is_right(layer, run) for layer in (layers[0], layers[-1]))
    benchmark(mover.move, [run])


@contextmanager
def memcpy(num_bytes: int, num_threads: int) -> Iterator[Any]:
    """memcpy of `num_bytes` on `num_threads` threads (ctypes lets go of the GIL)."""
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    parts = list(pairwise(num_bytes * i // num_threads for i in range(num_threads + 1)))

    def copy(part: tuple[int, int]) -> None:
        ctypes.memmove(target.data_ptr() + part[0], source.data_ptr() + part[0], part[1] - part[0])

    with ThreadPoolExecutor(num_threads) as pool:
        yield lambda: list(pool.map(copy, parts))


def is_right(layer: KVLayer, run: MoveRun) -> bool:
    """The gate: V bit for bit, K as the reference rotates it."""
    src, dst = (torch.from_numpy(span.slots(BLOCK_SIZE)) for span in (run.source, run.destination))
    key, value = reference.gather(layer.kv, layer.layout, src)
    moved_key, moved_value = reference.gather(layer.kv, layer.layout, dst)
    if run.delta == 0:
        return bool(torch.equal(moved_key, key) and torch.equal(moved_value, value))
    assert layer.rope is not None
    exact = reference.rotate(key, layer.rope, run.delta)
    allowed = TOLERANCE[key.dtype] * key.double().norm(dim=-1, keepdim=True)
    return bool(torch.equal(moved_value, value) and ((moved_key.double() - exact).abs() <= allowed).all())
