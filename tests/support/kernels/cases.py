"""Random KV caches and moves for the kernel tests: every layout, poisoned blocks, runs that start anywhere.

The poison is a value that no kernel may produce or touch: elements outside the written slots must keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from acmserve.kernels.layout import KVLayer, KVLayout
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.layouts.latent import LatentLayout
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.layouts.unequal import UnequalLayout
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope
from acmserve.kernels.runs import BlockSpan, MoveRun

POISON = 12345.0
MAX_DELTA = 131_072
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
# Relative to the key's norm for float32, and one rounding of the storage type (half an ulp) for the others.
HALF_ULP = {
    torch.float32: 0.0,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
# Half of the smallest number: what rounding costs below the normal numbers. bf16's and float32's are out of reach.
HALF_STEP = {torch.float16: 2.0**-25, torch.float8_e4m3fn: 2.0**-10, torch.float8_e5m2: 2.0**-17}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class Case:
    """One move over some layers that share slots."""

    layers: tuple[KVLayer, ...]
    runs: tuple[MoveRun, ...]

    @property
    def block_size(self) -> int:
        return self.layers[0].layout.block_size

    @cached_property
    def src_slots(self) -> Tensor:
        return torch.cat([slots(run.source, self.block_size) for run in self.runs])

    @cached_property
    def dst_slots(self) -> Tensor:
        return torch.cat([slots(run.destination, self.block_size) for run in self.runs])

    def clone(self) -> Case:
        """The same move on copies of the caches, strides kept."""
        layers = tuple(KVLayer(_like(layer.kv, layer.kv), layer.layout, layer.rope) for layer in self.layers)
        return Case(layers, self.runs)


def slots(span: BlockSpan, block_size: int) -> Tensor:
    return torch.from_numpy(span.slots(block_size))


def cut_runs(source: BlockSpan, destination: BlockSpan, deltas: dict[int, int], block_size: int) -> tuple[MoveRun, ...]:
    """The tokens of two spans as runs: one up to each of these ends, with its delta."""
    runs, start = [], 0
    for end, delta in deltas.items():
        src, dst = (cut(span, start, end, block_size) for span in (source, destination))
        runs.append(MoveRun(src.block_ids, src.offset, dst.block_ids, dst.offset, end - start, delta))
        start = end
    return tuple(runs)


def cut(span: BlockSpan, start: int, end: int, block_size: int) -> BlockSpan:
    """Tokens `[start, end)` of a span."""
    first, offset = divmod(span.offset + start, block_size)
    last = (span.offset + end - 1) // block_size
    return BlockSpan(list(span.block_ids)[first : last + 1], offset, end - start)


def make_rope(rot_dim: int, is_neox: bool, base: float = 10_000.0) -> Rope:
    inv_freq = base ** (-np.arange(0, rot_dim, 2) / rot_dim)
    return Rope(tuple(inv_freq.tolist()), rot_dim, is_neox)


def make_layer(
    layout: KVLayout, dtype: torch.dtype, num_blocks: int, rope: Rope | None, order: tuple[int, ...] = (0, 1, 2, 3)
) -> KVLayer:
    """A poisoned cache whose axes lie in memory in this order (outermost first)."""
    shape = (num_blocks, layout.num_kv_heads, layout.block_size, layout.row_size)
    memory = torch.full([shape[axis] for axis in order], POISON).to(dtype)
    return KVLayer(memory.permute([order.index(axis) for axis in range(4)]), layout, rope)


def fill_sources(case: Case, seed: int) -> None:
    """Random keys and values in the source slots, written by the reference's index functions."""
    generator = torch.Generator().manual_seed(seed)
    for layer in case.layers:
        tokens = (case.src_slots.numel(), layer.layout.num_kv_heads)
        key, value = (
            torch.randn(*tokens, size, generator=generator).to(layer.kv.dtype)
            for size in (layer.layout.head_size, layer.layout.value_size)
        )
        reference.scatter(layer.kv, layer.layout, case.src_slots, key, value)


def check_result(before: Case, after: Case, half_ulp: dict[torch.dtype, float] = HALF_ULP) -> None:
    """The whole cache is what the definition of `move` says, element by element."""
    src, dst = before.src_slots, before.dst_slots
    for old, new in zip(before.layers, after.layers, strict=True):
        key, value = reference.gather(old.kv, old.layout, src)
        moved_key, moved_value = reference.gather(new.kv, new.layout, dst)
        assert torch.equal(bits(moved_value), bits(value))
        start = 0
        for delta, runs in groupby(before.runs, key=lambda run: run.delta):
            part = slice(start, start := start + sum(run.num_tokens for run in runs))
            if old.rope is None or delta == 0:
                assert torch.equal(bits(moved_key[part]), bits(key[part]))
                continue
            exact = reference.rotate(key[part], old.rope, delta)
            norm = key[part].double().norm(dim=-1, keepdim=True)
            allowed = 2e-6 * norm + half_ulp[key.dtype] * exact.abs() + HALF_STEP.get(key.dtype, 0.0)
            assert ((moved_key[part].double() - exact).abs() <= allowed).all()
            assert torch.equal(bits(moved_key[part][..., old.rope.rot_dim :]), bits(key[part][..., old.rope.rot_dim :]))
        restored = _like(new.kv, new.kv)
        reference.scatter(restored, new.layout, dst, *reference.gather(old.kv, old.layout, dst))
        assert torch.equal(bits(restored), bits(old.kv)), "an element outside the destination slots changed"


def bits(tensor: Tensor) -> Tensor:
    """Integers, so that NaN equals itself and 0.0 differs from -0.0."""
    return tensor.contiguous().view(BITS[tensor.element_size()])


@st.composite
def cpu_cases(draw: st.DrawFn) -> Case:
    """Up to three layers with their own ropes, up to four runs, in one CPU layout."""
    kind = draw(st.sampled_from(["vec", "amx", "latent"]))
    amx = kind == "amx"
    block_size = draw(st.sampled_from([16, 32, 48])) if amx else draw(st.sampled_from([1, 5, 16, 32, 80]))
    head_size = (
        draw(st.sampled_from([16, 32, 80, 96, 256])) if amx else draw(st.sampled_from([2, 8, 24, 64, 80, 96, 256]))
    )
    layout: KVLayout
    if kind == "latent":
        layout = LatentLayout(1, block_size, head_size, draw(st.sampled_from([7, 64, 512])))
    else:
        layout = (CpuAmxLayout if amx else CpuVecLayout)(draw(st.integers(1, 3)), block_size, head_size)
    dtype = torch.bfloat16 if amx else draw(st.sampled_from([*DTYPES, *FP8_DTYPES]))
    rot_step = {"vec": 2, "amx": 4, "latent": head_size}[kind]
    return draw(_cases(layout, dtype, rot_step=rot_step, orders=[(0, 1, 2, 3), (1, 0, 2, 3)]))


@st.composite
def strided_cases(draw: st.DrawFn) -> Case:
    """The same for caches of rows, 8-bit types too, with the axes in memory in any order."""
    block_size, head_size = draw(st.sampled_from([3, 16])), draw(st.sampled_from([4, 10, 32, 80, 96]))
    layout: KVLayout
    kind = draw(st.sampled_from(["strided", "latent", "unequal"]))
    if kind == "latent":
        layout = LatentLayout(1, block_size, head_size, draw(st.sampled_from([7, 64])))
    elif kind == "unequal":
        layout = UnequalLayout(draw(st.integers(1, 2)), block_size, head_size, draw(st.sampled_from([6, 64, 128])))
    else:
        layout = StridedLayout(draw(st.integers(1, 2)), block_size, head_size)
    dtype = draw(st.sampled_from([*DTYPES, *FP8_DTYPES]))
    orders = [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (2, 0, 1, 3), (0, 1, 3, 2)]
    return draw(_cases(layout, dtype, rot_step=head_size if kind == "latent" else 2, orders=orders))


@st.composite
def _cases(draw: st.DrawFn, layout: KVLayout, dtype: torch.dtype, rot_step: int, orders: list[tuple[int, ...]]) -> Case:
    lengths = draw(st.lists(st.integers(1, 2 * layout.block_size + 3), min_size=1, max_size=4))
    deltas = [draw(st.integers(-MAX_DELTA, MAX_DELTA) | st.just(0)) for _ in lengths]
    src = [draw(st.integers(0, layout.block_size - 1)) for _ in lengths]
    dst = [draw(st.integers(0, layout.block_size - 1)) for _ in lengths]
    tokens = [offset + length for offset, length in zip(src + dst, lengths * 2, strict=True)]
    num_blocks = [-(-count // layout.block_size) for count in tokens]
    order = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).permutation(sum(num_blocks) + 2)
    tables = np.split(order, np.cumsum(num_blocks))[: len(num_blocks)]
    half = len(lengths)
    runs = tuple(
        MoveRun(tables[i].tolist(), src[i], tables[half + i].tolist(), dst[i], lengths[i], deltas[i])
        for i in range(half)
    )
    ropes = [None] + [
        make_rope(rot_dim, is_neox, base)
        for rot_dim in range(rot_step, layout.head_size + 1, rot_step)
        for is_neox in (True, False)
        for base in (10_000.0, 500_000.0)
    ]
    # Scaled families have frequencies of their own, and Gemma 4's include zeros.
    rot_dim = layout.head_size // rot_step * rot_step
    scaled = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).random(rot_dim // 2).round(1)
    ropes.append(Rope(tuple(scaled.tolist()), rot_dim, draw(st.booleans())))
    layers = tuple(
        make_layer(layout, dtype, len(order), draw(st.sampled_from(ropes)), draw(st.sampled_from(orders)))
        for _ in range(draw(st.integers(1, 3)))
    )
    case = Case(layers, runs)
    fill_sources(case, draw(st.integers(0, 2**32 - 1)))
    return case


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """A copy of `values` with exactly the strides of `tensor`."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(values)
