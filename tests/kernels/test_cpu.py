"""The C++ kernel against its reference: layouts, types, offsets, segments, ropes, and what it must leave and refuse."""

from __future__ import annotations

import math
import os
import platform
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import acmserve._native as _native
from acmserve.kernels.layout import KVLayer, KVLayout
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.layouts.latent import LatentLayout
from acmserve.kernels.movers import reference
from acmserve.kernels.movers.cpu import CpuMover, process_cpus
from acmserve.kernels.rope import Rope
from acmserve.kernels.runs import BlockSpan, MoveRun
from tests.support.kernels.cases import (
    FP8_DTYPES,
    Case,
    check_result,
    cpu_cases,
    cut_runs,
    fill_sources,
    make_layer,
    make_rope,
)

TYPES = [
    (CpuVecLayout, torch.float32),
    (CpuVecLayout, torch.bfloat16),
    (CpuVecLayout, torch.float16),
    (CpuVecLayout, torch.float8_e4m3fn),
    (CpuVecLayout, torch.float8_e5m2),
    (CpuAmxLayout, torch.bfloat16),
]


CPU_INFO = Path("/proc/cpuinfo")
INSTRUCTIONS = {0: "baseline", 256: "avx2", 512: "avx512"}
_AVX2 = {"avx2", "fma", "f16c"}
FLAGS = {"avx2": _AVX2, "avx512": _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
"""As Linux names what each instruction set takes. The widest comes last."""


@pytest.fixture(params=INSTRUCTIONS, ids=["scalar", "AVX2", "AVX-512"])
def vector_bits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each instruction set in turn, as far as this machine has it. Else the next narrower one would run again."""
    before = _native.limit_vectors(request.param)
    try:
        if _native.build_info()["instructions"] != INSTRUCTIONS[request.param]:
            pytest.skip("this machine lacks these instructions, and the next narrower ones run anyway")
        yield
    finally:
        _native.limit_vectors(before)


@pytest.mark.usefixtures("vector_bits")
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cpu_cases(), num_threads=st.integers(1, 3))
def test_move(case: Case, num_threads: int) -> None:
    after = case.clone()
    CpuMover(after.layers, after.block_size, num_threads).move(after.runs)
    check_result(case, after)


@pytest.mark.usefixtures("vector_bits")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    TYPES,
)
@pytest.mark.parametrize("num_layers", [4, 20])
def test_large_moves(kind: type[KVLayout], dtype: torch.dtype, num_layers: int) -> None:
    """4 layers have enough bytes for helpers to be woken (512 KiB), 20 layers for stores around the caches (8 MiB)."""
    layout = kind(3, 32, 64)
    ropes = [make_rope(64, True), make_rope(24, False), None]
    layers = tuple(make_layer(layout, dtype, 40, ropes[i % 3]) for i in range(num_layers))
    src, dst = BlockSpan(range(20), 7, 600), BlockSpan(range(20, 40), 19, 600)
    case = Case(layers, cut_runs(src, dst, {250: -1980, 400: 17, 600: 0}, 32))
    fill_sources(case, seed=1)
    after = case.clone()
    mover = CpuMover(after.layers, 32, num_threads=4)
    for _ in range(2):
        mover.move(after.runs)
        check_result(case, after)


@pytest.mark.parametrize(("kind", "dtype"), [pair for pair in TYPES if pair[1].itemsize > 1])
@pytest.mark.parametrize(("src_offset", "dst_offset"), [(0, 0), (31, 0), (0, 31), (96, 1), (64, 64), (100, 20)])
def test_large_moves_between_all_kinds_of_offsets(
    kind: type[KVLayout], dtype: torch.dtype, src_offset: int, dst_offset: int
) -> None:
    """Lines that are filled from one place, from two, from two segments, and copies that ascend and that descend."""
    layout = kind(2, 128, 96)
    ropes = [make_rope(96, True), make_rope(96, False), make_rope(24, True), make_rope(2, False), None]
    layers = tuple(make_layer(layout, dtype, 16, ropes[i % len(ropes)]) for i in range(20 // dtype.itemsize))
    src, dst = BlockSpan(range(8), src_offset, 900), BlockSpan(range(8, 16), dst_offset, 900)
    case = Case(layers, cut_runs(src, dst, {333: -1980, 600: 0, 900: 131_072}, 128))
    fill_sources(case, seed=11)
    after = case.clone()
    CpuMover(after.layers, 128, num_threads=2).move(after.runs)
    check_result(case, after)


@pytest.mark.usefixtures("vector_bits")
@pytest.mark.parametrize("kind", [CpuVecLayout, CpuAmxLayout])
def test_large_moves_of_scattered_tokens(kind: type[KVLayout]) -> None:
    """Every token a run of its own: a line is put together from many places, or written in many steps."""
    layout = kind(2, 32, 64)
    layers = tuple(make_layer(layout, torch.bfloat16, 80, make_rope(64, True)) for _ in range(14))
    generator = torch.Generator().manual_seed(12)
    scattered = torch.randperm(40 * 32, generator=generator).tolist()
    ordered = range(40 * 32, 80 * 32)
    for src, dst in ((scattered, ordered), (ordered, scattered)):
        runs = tuple(
            MoveRun([a // 32], a % 32, [b // 32], b % 32, 1, 4099 if i < 701 else -3)
            for i, (a, b) in enumerate(zip(src, dst, strict=True))
        )
        case = Case(layers, runs)
        fill_sources(case, seed=13)
        after = case.clone()
        CpuMover(after.layers, 32, num_threads=2).move(after.runs)
        check_result(case, after)


@pytest.mark.usefixtures("vector_bits")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block_size", [4, 1 << 12], ids=["scalar", "vector"])
def test_every_16_bit_number_is_rounded_as_torch_rounds(dtype: torch.dtype, block_size: int) -> None:
    """(x, 0) turned until the cosine is 3/4 is x * (3/4, sine): a quarter of the products are ties.

    Rows of 4 tokens go through the scalar conversions, rows of 4,096 through the vector ones.
    """
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    rope = Rope((math.acos(0.75),), 2, True)
    layer = make_layer(CpuVecLayout(1, block_size, 2), dtype, 2 * len(every) // block_size, rope)
    slots = torch.arange(len(every))
    key = torch.stack((every, torch.zeros_like(every)), dim=-1)[:, None, :]
    reference.scatter(layer.kv, layer.layout, slots, key, key)
    num_blocks = len(every) // block_size
    blocks = range(num_blocks), range(num_blocks, 2 * num_blocks)
    CpuMover([layer], block_size, 1).move([MoveRun(blocks[0], 0, blocks[1], 0, len(every), 1)])
    moved = reference.gather(layer.kv, layer.layout, slots + len(every))[0][:, 0]
    sine = float(np.float32(math.sin(math.acos(0.75))))
    expected = torch.stack((every.float() * 0.75, every.float() * sine), dim=-1).to(dtype)
    assert torch.equal(moved[every.isfinite()], expected[every.isfinite()])
    assert moved[every.isnan()].isnan().all()


@pytest.mark.usefixtures("vector_bits")
@pytest.mark.parametrize("kind", ["vec", "latent"])
@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_every_8_bit_number_is_widened_and_rounded_as_torch_does(dtype: torch.dtype, kind: str) -> None:
    """(x, y) for all x and some y, turned by 1 radian: NaN stays, what overflows becomes the largest number."""
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    partners = torch.tensor([0.0, 0.013, -3.0, torch.finfo(dtype).max]).to(dtype).float()
    a, b = every.float().repeat_interleave(4), partners.repeat(256)
    layout = CpuVecLayout(1, 1024, 2) if kind == "vec" else LatentLayout(1, 1024, 2, 3)
    layer = make_layer(layout, dtype, 2, Rope((1.0,), 2, False))
    slots, key = torch.arange(1024), torch.stack((a, b), dim=-1)[:, None, :].to(dtype)
    reference.scatter(layer.kv, layout, slots, key, torch.ones(1024, 1, layout.value_size).to(dtype))
    CpuMover([layer], 1024, 1).move([MoveRun([0], 0, [1], 0, 1024, 1)])
    moved = reference.gather(layer.kv, layout, slots + 1024)[0][:, 0].float()
    cos, sin = (torch.tensor(f(1.0)).float() for f in (math.cos, math.sin))
    largest = torch.finfo(dtype).max
    exact = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).clamp(-largest, largest)
    finite = a.isfinite()
    # The kernel may fuse a product and a sum, and so break a tie the other way.
    assert (moved[finite] == exact[finite].to(dtype).float()).double().mean() > 0.999
    assert moved[a.isnan()].isnan().all()


@pytest.mark.usefixtures("vector_bits")
def test_amx_keys_are_rounded_as_torch_rounds() -> None:
    """As above, through the conversions of packed words."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    rope = Rope((math.acos(0.75), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), 16, False)
    layer = make_layer(CpuAmxLayout(1, 4096, 16), torch.bfloat16, 32, rope)
    slots = torch.arange(len(every))
    key = torch.zeros(len(every), 1, 16, dtype=torch.bfloat16)
    key[:, 0, 0] = every
    reference.scatter(layer.kv, layer.layout, slots, key, key)
    CpuMover([layer], 4096, 1).move([MoveRun(range(16), 0, range(16, 32), 0, len(every), 1)])
    moved = reference.gather(layer.kv, layer.layout, slots + len(every))[0][:, 0]
    sine = float(np.float32(math.sin(math.acos(0.75))))
    expected = torch.stack((every.float() * 0.75, every.float() * sine), dim=-1).to(torch.bfloat16)
    assert torch.equal(moved[every.isfinite(), :2], expected[every.isfinite()])
    assert moved[every.isnan(), :2].isnan().all()
    assert not moved[:, 2:].any()


def test_addresses_beyond_32_bits() -> None:
    """Blocks 2^31 + 64 elements apart, in memory that is reserved and hardly touched."""
    kv = torch.empty_strided((3, 1, 16, 32), (2**31 + 64, 512, 32, 1), dtype=torch.bfloat16)
    kv.fill_(1.0)
    layer = KVLayer(kv, CpuVecLayout(1, 16, 16), make_rope(16, True))
    case = Case((layer,), (MoveRun([0, 1], 3, [2], 0, 16, 5),))
    fill_sources(case, seed=4)
    after = case.clone()
    CpuMover(after.layers, 16, 1).move(case.runs)
    check_result(case, after)


def test_rotations_add_up() -> None:
    """Turning by a, then by b, agrees with turning by a + b to float32 rounding, at large angles too."""
    layout = CpuVecLayout(2, 16, 64)
    rope = make_rope(64, True)
    a, b = 131_072, -130_001
    twice, once = (make_layer(layout, torch.float32, 3, rope) for _ in range(2))
    fill_sources(Case((twice,), (MoveRun([0], 0, [1], 0, 16, a),)), seed=3)
    once.kv.copy_(twice.kv)
    mover = CpuMover([twice], 16, 1)
    mover.move([MoveRun([0], 0, [1], 0, 16, a)])
    mover.move([MoveRun([1], 0, [2], 0, 16, b)])
    CpuMover([once], 16, 1).move([MoveRun([0], 0, [2], 0, 16, a + b)])
    norm = once.kv[2].norm(dim=-1).max()
    assert (twice.kv[2] - once.kv[2]).abs().max() <= 2e-6 * norm


def test_a_slot_outside_of_the_cache_is_refused_before_anything_is_written() -> None:
    layer = make_layer(CpuVecLayout(1, 16, 8), torch.float32, 2, None)
    before = layer.kv.clone()
    mover = CpuMover([layer], 16, 1)
    with pytest.raises(ValueError, match="block 2 outside of a cache of 2 blocks"):
        mover.move([MoveRun([0], 0, [1, 2], 1, 16, 0)])
    with pytest.raises(ValueError, match="negative slot at index 0"):
        mover.move([MoveRun([-1], 15, [1], 1, 1, 0)])
    assert torch.equal(layer.kv, before)


def test_helpers_may_use_every_core_of_the_process() -> None:
    """Also where a thread asks that is bound to one of them, as vLLM binds its worker's."""
    cpus = process_cpus()
    assert cpus == sorted(set(cpus))
    own = os.sched_getaffinity(0)
    assert own <= set(cpus)
    found: set[int] = set()

    def ask_bound() -> None:
        os.sched_setaffinity(0, {min(own)})  # of this thread alone
        found.update(process_cpus())

    thread = threading.Thread(target=ask_bound)
    thread.start()
    thread.join()
    assert own <= found


def test_build_info_names_the_compiler() -> None:
    info = _native.build_info()
    assert info["compiler"] in {"gcc", "clang"}
    assert info["instructions"] in {"avx512", "avx2", "baseline"}


@pytest.mark.skipif(platform.machine() != "x86_64" or not CPU_INFO.exists(), reason="no x86 under Linux")
def test_the_widest_instructions_of_the_machine_are_found() -> None:
    """Else the cases above would skip what this machine has, and a move would be slow without a word."""
    [*_, flags] = re.findall(r"^flags\s*:(.*)$", CPU_INFO.read_text(), re.MULTILINE)
    found = [name for name, needed in FLAGS.items() if needed <= set(flags.split())]
    assert _native.build_info()["instructions"] == ["baseline", *found][-1]
