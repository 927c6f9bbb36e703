"""The Triton kernel in Triton's interpreter, on CPU tensors, against the reference."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from vllm.v1.kv_cache_layout import KVCacheLayout

from acmserve.kernels import dispatch
from acmserve.kernels.layer_group import LayerGroup
from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.latent import LatentLayout
from acmserve.kernels.layouts.registry import find_layer
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.movers import reference
from acmserve.kernels.movers.run_table import TILE_TOKENS, run_table
from acmserve.kernels.rope import Rope
from acmserve.kernels.runs import BlockSpan, MoveRun
from tests.support.kernels.cases import (
    FP8_DTYPES,
    HALF_ULP,
    POISON,
    Case,
    bits,
    check_result,
    cut_runs,
    fill_sources,
    make_layer,
    make_rope,
    strided_cases,
)

# Triton 3.9's interpreter cuts float32 to bfloat16 (`cast_impl` passes no rounding mode), GPUs round to nearest.
INTERPRETER_ERROR = {**HALF_ULP, torch.bfloat16: 2 * HALF_ULP[torch.bfloat16]}


@pytest.fixture(scope="module")
def strided() -> Iterator[ModuleType]:
    """The kernel's module, decorated anew so that its `triton.jit` makes an interpreted function."""
    from acmserve.kernels.movers import triton as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.reload(module)
    importlib.reload(module)


def make_mover(strided: ModuleType, layers: Sequence[KVLayer], block_size: int) -> Any:
    return strided.StridedMover({0: LayerGroup.of(layers, block_size)})


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=strided_cases())
def test_move(strided: ModuleType, case: Case) -> None:
    after = case.clone()
    make_mover(strided, after.layers, after.block_size).move({0: after.runs})
    check_result(case, after, INTERPRETER_ERROR)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", list(KVCacheLayout), ids=lambda layout: layout.name)
@pytest.mark.parametrize("head_size", [80, 128])
def test_move_in_every_layout_of_vllm(
    strided: ModuleType, layout: KVCacheLayout, head_size: int, dtype: torch.dtype
) -> None:
    """One launch for a model with two thetas and a layer without positions. Runs have their own deltas."""
    geometry = StridedLayout(2, 16, head_size)
    ropes = [make_rope(head_size, True), make_rope(head_size, True, base=1e6), None]
    shape = (len(ropes), 7, 2, 16, geometry.row_size)
    memory = torch.full([shape[axis] for axis in layout.stride_order], POISON).to(dtype)
    caches = memory.permute([layout.stride_order.index(axis) for axis in range(5)])
    layers = tuple(KVLayer(kv, geometry, rope) for kv, rope in zip(caches, ropes, strict=True))
    src, dst = BlockSpan([5, 0, 3], 3, 41), BlockSpan([6, 2, 4], 7, 41)
    before = Case(layers, cut_runs(src, dst, {20: 131_072, 30: 0, 41: -7}, 16))
    fill_sources(before, seed=5)
    # The layers share their memory, as in vLLM: a write astray into a neighbour is found too.
    moved = caches.clone()
    after = Case(tuple(map(KVLayer, moved, [geometry] * 3, ropes)), before.runs)
    mover = make_mover(strided, after.layers, 16)
    mover.move({0: before.runs})
    assert mover.num_launches == 1
    check_result(before, after, INTERPRETER_ERROR)


GROUPS = {
    0: [MoveRun([1, 2], 3, [6, 5], 0, 20, 31), MoveRun([4], 0, [7], 9, 7, -5)],
    1: [],
    2: [MoveRun([8, 9], 12, [11], 2, 13, -2_000), MoveRun([10], 1, [12], 0, 15, 0)],
}
"""Runs of two requests in three groups whose layers share their memory. In the second group nothing is moved."""


def make_group(kvs: Tensor, layout: StridedLayout, ropes: Sequence[Rope | None]) -> LayerGroup:
    return LayerGroup.of([KVLayer(kv, layout, rope) for kv, rope in zip(kvs, ropes, strict=True)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_one_launch_moves_all_requests_in_all_groups(strided: ModuleType, dtype: torch.dtype) -> None:
    """Bit for bit what a launch for each request, group and layer leaves behind."""
    layout = StridedLayout(2, 16, 32)
    near, far = make_rope(32, True), make_rope(32, True, base=1e6)
    ropes: dict[int, list[Rope | None]] = {0: [near, far, None], 1: [near], 2: [far, None]}
    kvs = torch.randn(3, 13, 2, 16, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    apart, together = kvs.clone(), kvs.clone()
    for number, runs in GROUPS.items():
        for run in runs:
            for kv, rope in zip(apart, ropes[number], strict=False):
                strided.StridedMover({0: make_group(kv[None], layout, [rope])}).move({0: [run]})
    launches: list[tuple[int, ...]] = []
    mover = strided.StridedMover({n: make_group(together[: len(of)], layout, of) for n, of in ropes.items()})
    with pytest.MonkeyPatch.context() as patch:
        count_launches(patch, strided, launches)
        mover.move(GROUPS)
    num_tiles = sum(-(-run.num_tokens // 16) for runs in GROUPS.values() for run in runs)
    assert launches == [(num_tiles, 3)]
    assert torch.equal(bits(together), bits(apart))
    assert not torch.equal(bits(together), bits(kvs))


def test_groups_of_other_geometries_have_launches_of_their_own(strided: ModuleType) -> None:
    """A launch has the head size in it. What it has nothing to do for is not started."""
    kvs = {0: torch.randn(1, 4, 1, 16, 64), 1: torch.randn(1, 8, 1, 16, 32)}
    groups = {
        n: make_group(kv, StridedLayout(1, 16, kv.shape[-1] // 2), [make_rope(16, True)]) for n, kv in kvs.items()
    }
    mover = strided.StridedMover(groups)
    before = {n: kv.clone() for n, kv in kvs.items()}
    launches: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        count_launches(patch, strided, launches)
        mover.move({1: [MoveRun([2], 0, [7], 0, 16, 0)]})
    assert mover.num_launches == 2
    assert launches == [(1, 1)]
    assert torch.equal(kvs[0], before[0])
    assert torch.equal(kvs[1][0, 7], before[1][0, 2])


def test_what_a_step_compiles_was_compiled_at_the_start(strided: ModuleType) -> None:
    """Triton compiles anew for other constants. Those of any step are among those of the warm-up, in each geometry.

    Control: a warm-up of the first group alone leaves some of the second to a step.
    """
    kvs = {0: torch.randn(2, 4, 1, 16, 64), 1: torch.randn(1, 8, 1, 16, 32), 2: torch.randn(1, 8, 1, 16, 32)}
    ropes: dict[int, list[Rope | None]] = {0: [make_rope(32, True), None], 1: [make_rope(16, False)], 2: [None]}
    groups = {n: make_group(kv, StridedLayout(1, 16, kv.shape[-1] // 2), ropes[n]) for n, kv in kvs.items()}
    with pytest.MonkeyPatch.context() as patch:
        compiled: set[Any] = set()
        patch.setattr(dispatch, "choose", lambda layer: "triton")
        note_constants(patch, strided, compiled)
        mover = dispatch.GroupMover(groups)
        mover.warm_up()
        at_start = set(compiled)
        assert len(at_start) == 2
        for delta, num_tokens in ((0, 5), (-1980, 15), (7, 3)):
            for wanted in ([0], [1], [1, 2], [0, 1, 2]):
                mover.move({n: [MoveRun([2 + 2 * n], 1, [3 + 2 * n], 0, num_tokens, delta)] for n in wanted})
        assert compiled == at_start
        compiled.clear()
        warm_up = MoveRun([0], 0, [0], 0, 1, 0)
        dispatch.GroupMover(groups)._functions[0]({0: [warm_up]})
        assert compiled < at_start


def note_constants(patch: pytest.MonkeyPatch, strided: ModuleType, compiled: set[Any]) -> None:
    """Writes down what each launch is compiled for: its constants, and the stride that Triton looks at."""

    class Noted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def start(*args: Any, **constants: Any) -> None:
                compiled.add((args[-1], *constants.items()))
                kernel[grid](*args, **constants)

            return start

    kernel = strided.move_kernel
    patch.setattr(strided, "move_kernel", Noted())


def count_launches(patch: pytest.MonkeyPatch, strided: ModuleType, launches: list[tuple[int, ...]]) -> None:
    """Writes the grid of each launch down."""

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            launches.append(grid)
            return kernel[grid]

    kernel = strided.move_kernel
    patch.setattr(strided, "move_kernel", Counted())


def test_the_table_of_a_launch_grows_with_blocks() -> None:
    """The kernel counts tokens. The host tells it of a long run what it would tell of a short one, and the blocks."""
    long, short = MoveRun(range(8193), 5, range(8193, 16386), 11, 131_072, 7), MoveRun([1], 0, [2], 3, 5, 0)
    table, num_tiles = run_table([(0, long), (2, short)])
    assert num_tiles == 131_072 // TILE_TOKENS + 1
    assert len(table) == 2 * 7 + 2 * num_tiles + 2 * 8193 + 2
    assert table[7:14].tolist() == [len(table) - 2, 0, len(table) - 1, 3, 5, 0, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_move_of_deepseeks_latent_cache(strided: ModuleType, dtype: torch.dtype) -> None:
    """`[num_blocks, block_size, kv_lora_rank + rope_dim]`: kv_c bit for bit, k_pe turned in interleaved pairs."""
    layout, rope = LatentLayout(1, 64, 64, latent_size=512), make_rope(64, False)
    caches = [torch.full((4, 64, 576), POISON).to(dtype) for _ in range(2)]
    before = Case(
        tuple(KVLayer(kv.unsqueeze(1), layout, rope) for kv in caches),
        cut_runs(BlockSpan([3, 1], 50, 70), BlockSpan([0, 2], 9, 70), {30: -1980, 70: 0}, 64),
    )
    fill_sources(before, seed=6)
    after = before.clone()
    make_mover(strided, after.layers, after.block_size).move({0: after.runs})
    check_result(before, after, INTERPRETER_ERROR)
    latent, turned = after.layers[0].kv[0, 0, 9].split([512, 64])
    assert torch.equal(bits(latent), bits(caches[0][3, 50, :512]))
    assert not torch.equal(bits(turned), bits(caches[0][3, 50, 512:]))


def test_move_of_deepseeks_packed_latent_cache(strided: ModuleType) -> None:
    """`fp8_ds_mla`, 656 bytes: 512 of the latent in fp8, 4 float32 scales, 64 bfloat16 of the key. Only these turn."""
    attention = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=64, head_size=576, kv_cache_dtype="fp8_ds_mla")
    generator = torch.Generator().manual_seed(6)
    rows = torch.randint(0, 256, (4, 1, 64, 656), dtype=torch.uint8, generator=generator)
    keys = torch.randn(4, 1, 64, 64, generator=generator).to(torch.bfloat16)
    rows[..., 528:] = keys.view(torch.uint8)
    before = replace(find_layer("layer", attention, rows.clone()), rope=make_rope(64, False))
    after = replace(find_layer("layer", attention, rows), rope=before.rope)
    runs = cut_runs(BlockSpan([3, 1], 50, 70), BlockSpan([0, 2], 9, 70), {30: -1980, 70: 0}, 64)
    mover = make_mover(strided, [after], 64)
    mover.move({0: runs})
    assert mover.num_launches == 1
    check_result(Case((before,), runs), Case((after,), runs), INTERPRETER_ERROR)
    source = before.kv.view(torch.uint8)[3, 0, 50]
    assert torch.equal(rows[0, 0, 9, :528], source[:528])
    assert not torch.equal(rows[0, 0, 9, 528:], source[528:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("num_heads", [1, 3, 5, 8])
def test_every_head_moves_and_nothing_behind_the_last(strided: ModuleType, num_heads: int, dtype: torch.dtype) -> None:
    """A program takes some heads of its tokens, and the last one of a layer may have fewer. Neighbours are poisoned."""
    layout, rope = StridedLayout(num_heads, 16, 32), make_rope(32, True)
    memory = torch.full((4, 16, num_heads + 1, layout.row_size), POISON).to(dtype)
    layer = KVLayer(memory[:, :, :num_heads].transpose(1, 2), layout, rope)
    before = Case((layer,), cut_runs(BlockSpan([3, 1], 5, 20), BlockSpan([0, 2], 9, 20), {9: 33, 20: 0}, 16))
    fill_sources(before, seed=9)
    moved = memory.clone()
    after = Case((KVLayer(moved[:, :, :num_heads].transpose(1, 2), layout, rope),), before.runs)
    make_mover(strided, after.layers, 16).move({0: before.runs})
    check_result(before, after, INTERPRETER_ERROR)
    assert torch.equal(bits(moved[:, :, num_heads]), bits(memory[:, :, num_heads]))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["block", "head", "token"])
def test_addresses_beyond_32_bits(strided: ModuleType, axis: int) -> None:
    """Neighbours 2^31 + 64 elements apart, in memory that is reserved and hardly touched."""
    layout, rope = StridedLayout(2, 2, 16), make_rope(16, True)
    strides = [128, 64, 32, 1]
    strides[axis] = 2**31 + 64
    kv = torch.empty_strided((2, 2, 2, 32), strides, dtype=torch.float8_e4m3fn)
    assert kv.untyped_storage().nbytes() > 2**31
    kv.view(torch.uint8).fill_(0x55)
    case = Case((KVLayer(kv, layout, rope),), (MoveRun([0], 0, [1], 0, 2, 5),))
    fill_sources(case, seed=7)
    after = case.clone()
    make_mover(strided, after.layers, 2).move({0: case.runs})
    check_result(case, after, INTERPRETER_ERROR)


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_every_8_bit_number_is_widened_and_rounded_as_torch_does(strided: ModuleType, dtype: torch.dtype) -> None:
    """(x, y) for all finite x and some y, turned by 1 radian: NaN stays, what overflows becomes the largest number."""
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    partner = torch.tensor([0.0, 0.013, -3.0, torch.finfo(dtype).max]).to(dtype)
    layout, rope = StridedLayout(4, 256, 2), Rope((1.0,), 2, False)
    layer = make_layer(layout, dtype, 2, rope)
    slots = torch.arange(256)
    key = torch.stack((every[:, None].float().expand(-1, 4), partner.float().expand(256, -1)), dim=-1)
    reference.scatter(layer.kv, layout, slots, key.to(dtype), key.to(dtype))
    make_mover(strided, [layer], 256).move({0: [MoveRun([0], 0, [1], 0, 256, 1)]})
    moved, value = reference.gather(layer.kv, layout, slots + 256)
    assert torch.equal(bits(value), bits(key.to(dtype)))
    cos, sin = torch.tensor(1.0).double().cos().float(), torch.tensor(1.0).double().sin().float()
    a, b = key.to(dtype).float().unbind(-1)
    largest = torch.finfo(dtype).max
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).clamp(-largest, largest)
    finite = every.float().isfinite()
    assert torch.equal(moved[finite].float(), turned[finite].to(dtype).float())
    assert moved[every.float().isnan()].float().isnan().all()


@pytest.mark.parametrize("scale", [1.0, 0.037])
@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_quantised_keys_lose_one_rounding(strided: ModuleType, dtype: torch.dtype, scale: float) -> None:
    """Dequantised, turned and quantised again with the same scale, for any scale: half an ulp of each element.

    Relative to the key that is at most 2^-4 (e4m3) and 2^-3 (e5m2), and about 0.4 of that in the mean.
    """
    layout, rope = StridedLayout(1, 64, 128), make_rope(128, True)
    layer = make_layer(layout, dtype, 2, rope)
    case = Case((layer,), (MoveRun([0], 0, [1], 0, 64, -1980),))
    fill_sources(case, seed=8)
    stored, _ = reference.gather(layer.kv, layout, case.src_slots)
    make_mover(strided, [layer], 64).move({0: case.runs})
    moved, _ = reference.gather(layer.kv, layout, case.dst_slots)
    exact = reference.rotate(stored.double() * scale, rope, -1980)
    requantised = reference.narrow(exact / scale, dtype)
    same = moved.float() == requantised.float()
    assert same.double().mean() > 0.999, "apart from ties, the scale cancels"
    error = (moved.double() * scale - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error.max() <= HALF_ULP[dtype]
    assert 0.3 * HALF_ULP[dtype] < error.mean() < 0.5 * HALF_ULP[dtype]
