"""Which kernel serves which layer, and what no kernel ever gets to see."""

from __future__ import annotations

import pytest
import torch

from acmserve.errors import IntegrityError
from acmserve.kernels import dispatch
from acmserve.kernels.layout import KVLayout
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.slots import SlotRun, slot_range
from tests.support.kernels.cases import Case, check_result, fill_sources, make_layer, make_rope

BLOCK_SIZE = 16


def make_case(kind: type[KVLayout], dtype: torch.dtype = torch.float32, rot_dim: int = 32) -> Case:
    layout = kind(2, BLOCK_SIZE, 32)
    layers = (make_layer(layout, dtype, 4, make_rope(rot_dim, True)), make_layer(layout, dtype, 4, None))
    src, dst = slot_range([1], 2, 12, BLOCK_SIZE), slot_range([3], 0, 12, BLOCK_SIZE)
    case = Case(layers, src, dst, (SlotRun(0, 5, 0), SlotRun(5, 12, 99)))
    fill_sources(case, seed=9)
    return case


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (make_case(CpuVecLayout), {"cpu": 2}),
        (make_case(CpuVecLayout, torch.float16), {"cpu": 2}),
        (make_case(CpuAmxLayout, torch.bfloat16), {"cpu": 2}),
        (make_case(CpuAmxLayout, torch.bfloat16, rot_dim=30), {"reference": 1, "cpu": 1}),
        (make_case(StridedLayout), {"reference": 2}),
    ],
    ids=["vec", "vec in float16", "amx", "amx with odd pairs", "strided on the CPU"],
)
def test_move(case: Case, expected: dict[str, int]) -> None:
    after = case.clone()
    assert dispatch.LayerMover(after.layers, num_threads=2).implementations == expected
    dispatch.move(after.layers, after.src_slots, after.dst_slots, after.segments, num_threads=2)
    check_result(case, after)


@pytest.mark.parametrize(
    ("src", "dst", "segments", "message"),
    [
        ([16, 17], [30, 31], [SlotRun(0, 2, 5)], r"blocks \[1\] are both source and destination"),
        ([16, 17], [32, 32], [SlotRun(0, 2, 5)], "written twice"),
        ([16, 17], [32], [SlotRun(0, 2, 5)], "2 source slots for 1 destination"),
        ([16, 64], [32, 33], [SlotRun(0, 2, 5)], r"src_slots spans \[16, 64\], the cache has 64 slots"),
        ([16, 17], [-1, 33], [SlotRun(0, 2, 5)], r"dst_slots spans \[-1, 33\]"),
        ([16, 17], [32, 33], [SlotRun(0, 1, 5)], "cover 1 of 2 slots"),
        ([16, 17], [32, 33], [SlotRun(1, 2, 5)], "does not continue"),
        ([16, 17], [32, 33], [SlotRun(0, 2, 5), SlotRun(2, 2, 5)], "does not continue"),
    ],
)
def test_a_move_that_breaks_the_rules_writes_nothing(
    src: list[int], dst: list[int], segments: list[SlotRun], message: str
) -> None:
    layers = make_case(CpuVecLayout).layers
    before = [layer.kv.clone() for layer in layers]
    with pytest.raises(IntegrityError, match=message):
        dispatch.move(layers, torch.tensor(src), torch.tensor(dst), segments)
    assert all(torch.equal(layer.kv, kv) for layer, kv in zip(layers, before, strict=True))


def test_slots_of_the_wrong_type_are_refused() -> None:
    slots = torch.tensor([16], dtype=torch.int32)
    with pytest.raises(IntegrityError, match=r"src_slots must be int64 \[n\] on the CPU, is torch.int32"):
        dispatch.move(make_case(CpuVecLayout).layers, slots, slots, [SlotRun(0, 1, 0)])


def test_an_empty_move_is_allowed() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    layers = make_case(CpuVecLayout).layers
    before = layers[0].kv.clone()
    dispatch.move(layers, empty, empty, [])
    assert torch.equal(layers[0].kv, before)


def test_layers_that_do_not_share_slots_are_refused() -> None:
    layers = [make_layer(CpuVecLayout(1, size, 8), torch.float32, 4, None) for size in (16, 32)]
    with pytest.raises(ValueError, match="share slots"):
        dispatch.LayerMover(layers)


def test_slot_range() -> None:
    assert slot_range([5, 2], 14, 4, BLOCK_SIZE).tolist() == [94, 95, 32, 33]
    with pytest.raises(IntegrityError, match="19 tokens from offset 14 do not fit 2 blocks of 16"):
        slot_range([5, 2], 14, 19, BLOCK_SIZE)


def test_available_says_why_a_kernel_is_missing() -> None:
    kernels = dispatch.available()
    assert kernels["cpu"].usable
    assert kernels["reference"].usable
    assert kernels["triton"].usable == torch.cuda.is_available()
    assert all(kernel.detail for kernel in kernels.values())
