"""Which kernel serves which layer, and what no kernel ever gets to see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import IntegrityError
from acmserve.kernels import dispatch
from acmserve.kernels.layer_group import LayerGroup
from acmserve.kernels.layout import KVLayout
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.runs import BlockSpan, MoveRun, check_runs
from tests.support.kernels.cases import Case, check_result, cut_runs, fill_sources, make_layer, make_rope

BLOCK_SIZE = 16


def make_case(kind: type[KVLayout], dtype: torch.dtype = torch.float32, rot_dim: int = 32) -> Case:
    layout = kind(2, BLOCK_SIZE, 32)
    layers = (make_layer(layout, dtype, 4, make_rope(rot_dim, True)), make_layer(layout, dtype, 4, None))
    case = Case(layers, cut_runs(BlockSpan([1], 2, 12), BlockSpan([3], 0, 12), {5: 0, 12: 99}, BLOCK_SIZE))
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
    dispatch.move(after.layers, after.runs, num_threads=2)
    check_result(case, after)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([MoveRun([1], 0, [1, 2], 14, 3, 5)], r"blocks \[1\] are both source and destination"),
        ([MoveRun([1], 0, [2], 0, 2, 5), MoveRun([2], 0, [3], 0, 2, 5)], r"blocks \[2\] are both"),
        ([MoveRun([1], 0, [2], 0, 2, 5), MoveRun([1], 2, [2], 1, 2, 5)], "slot of block 2 is written twice"),
        ([MoveRun([0, 1, 0], 0, [2, 3, 2], 0, 40, 5)], "slot of block 2 is written twice"),
        ([MoveRun([1, 4], 15, [2], 0, 2, 5)], r"source blocks span \[1, 4\], the cache has 4 blocks"),
        ([MoveRun([1], 0, [-1], 0, 2, 5)], r"destination blocks span \[-1, -1\]"),
        ([MoveRun([1], 15, [2], 0, 2, 5)], "2 source tokens from offset 15 do not fill 1 blocks of 16"),
        ([MoveRun([1], 0, [2, 3], 0, 2, 5)], "2 destination tokens from offset 0 do not fill 2 blocks of 16"),
        ([MoveRun([1], 16, [2], 0, 2, 5)], "from offset 16"),
        ([MoveRun([], 0, [], 0, 0, 5)], "0 source tokens"),
    ],
)
def test_a_move_that_breaks_the_rules_writes_nothing(runs: list[MoveRun], message: str) -> None:
    layers = make_case(CpuVecLayout).layers
    before = [layer.kv.clone() for layer in layers]
    with pytest.raises(IntegrityError, match=message):
        dispatch.move(layers, runs)
    assert all(torch.equal(layer.kv, kv) for layer, kv in zip(layers, before, strict=True))


@pytest.mark.parametrize(
    ("near", "far", "message"),
    [
        (MoveRun([0], 0, [1], 0, 9, 5), MoveRun([2], 0, [1], 9, 7, 5), r"blocks \[1\] are written for two groups"),
        (MoveRun([0], 0, [1], 0, 9, 5), MoveRun([1], 0, [3], 0, 9, 5), r"blocks \[1\] are both source and destination"),
        (MoveRun([0], 0, [1], 0, 9, 5), MoveRun([2], 0, [4], 0, 9, 5), r"destination blocks span \[4, 4\]"),
    ],
)
def test_groups_that_would_disturb_each_other_write_nothing(near: MoveRun, far: MoveRun, message: str) -> None:
    """Layers of both share one tensor, as in vLLM. Whichever group came first, the other's KV would be wrong."""
    layer = make_case(CpuVecLayout).layers[0]
    before = layer.kv.clone()
    mover = dispatch.GroupMover({0: LayerGroup.of([layer]), 2: LayerGroup.of([layer])})
    with pytest.raises(IntegrityError, match=message):
        mover.move({0: [near], 2: [far]})
    assert torch.equal(layer.kv, before)


@pytest.mark.parametrize("kind", [CpuVecLayout, StridedLayout])
def test_groups_are_moved_together_as_one_by_one(kind: type[KVLayout]) -> None:
    """Two layers, each with the runs of its own group. A third group has nothing to do."""
    case = make_case(kind)
    runs = {4: [MoveRun([0], 3, [2], 1, 12, 31)], 1: [MoveRun([1], 0, [3], 5, 9, -7)], 0: []}
    fill_sources(replace(case, runs=(runs[4][0], runs[1][0])), seed=12)
    apart, together = case.clone(), case.clone()
    for number, found in runs.items():
        dispatch.move([apart.layers[number % 2]], found)
    mover = dispatch.GroupMover({number: LayerGroup.of([together.layers[number % 2]]) for number in runs})
    mover.move(runs)
    assert sum(mover.implementations.values()) == 3
    for one, other, old in zip(apart.layers, together.layers, case.layers, strict=True):
        assert torch.equal(one.kv, other.kv)
        assert not torch.equal(one.kv, old.kv)


def test_two_runs_may_share_a_block_that_they_write() -> None:
    case = replace(make_case(CpuVecLayout), runs=(MoveRun([0], 0, [2], 5, 7, 3), MoveRun([1], 8, [2], 0, 5, 0)))
    fill_sources(case, seed=10)
    after = case.clone()
    dispatch.move(after.layers, after.runs)
    check_result(case, after)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=4))
def test_a_slot_that_is_written_twice_is_found_as_by_a_list_of_all_slots(written: list[tuple[int, int]]) -> None:
    """Blocks of 8: destinations from 0 to 60, sources behind them."""
    runs = [
        MoveRun(range(8, 8 + -(-num // 8)), 0, range(first // 8, (first + num - 1) // 8 + 1), first % 8, num, 1)
        for first, num in written
    ]
    slots = [slot for run in runs for slot in run.destination.slots(8).tolist()]
    if len(set(slots)) == len(slots):
        check_runs(runs, 16, 8)
    else:
        with pytest.raises(IntegrityError, match="written twice"):
            check_runs(runs, 16, 8)


def test_a_run_is_checked_without_counting_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 131,072 tokens a list of slots took longer to check than several steps of decoding take."""
    monkeypatch.delattr(BlockSpan, "slots")
    run = MoveRun(range(8193), 5, range(8193, 16386), 11, 131_072, 7)
    check_runs([run], 16386, 16)
    with pytest.raises(IntegrityError, match="written twice"):
        check_runs([run, MoveRun([16386], 0, [16385], 10, 1, 7)], 16387, 16)


def test_runs_in_larger_blocks_than_the_layers_have() -> None:
    """vLLM's manager counts 32 tokens a block where the attention backend's kernel has two blocks of 16 for them."""
    case = replace(make_case(CpuVecLayout), runs=(MoveRun([0, 1], 10, [2, 3], 3, 20, 99),))
    fill_sources(case, seed=11)
    after = case.clone()
    run = MoveRun([0], 10, [1], 3, 20, 99)
    assert run.source.slots(32).tolist() == case.src_slots.tolist()
    dispatch.LayerMover(after.layers, block_size=32).move([run])
    check_result(case, after)
    for block_size in (24, 8, 128):
        with pytest.raises(ValueError, match="does not cut 4 blocks of 16 tokens evenly"):
            dispatch.LayerMover(after.layers, block_size=block_size)


@pytest.mark.parametrize("kind", [CpuVecLayout, StridedLayout])
def test_warming_up_changes_nothing(kind: type[KVLayout]) -> None:
    case = make_case(kind)
    after = case.clone()
    dispatch.LayerMover(after.layers).warm_up()
    assert all(torch.equal(old.kv, new.kv) for old, new in zip(case.layers, after.layers, strict=True))


def test_an_empty_move_is_allowed() -> None:
    layers = make_case(CpuVecLayout).layers
    before = layers[0].kv.clone()
    dispatch.move(layers, [])
    assert torch.equal(layers[0].kv, before)


def test_layers_that_do_not_share_slots_are_refused() -> None:
    layers = [make_layer(CpuVecLayout(1, size, 8), torch.float32, 4, None) for size in (16, 32)]
    with pytest.raises(ValueError, match="share slots"):
        dispatch.LayerMover(layers)


def test_slots_of_a_span() -> None:
    assert BlockSpan([5, 2], 14, 4).slots(BLOCK_SIZE).tolist() == [94, 95, 32, 33]


def test_available_says_why_a_kernel_is_missing() -> None:
    kernels = dispatch.available()
    assert kernels["cpu"].usable
    assert kernels["reference"].usable
    assert kernels["triton"].usable == torch.cuda.is_available()
    assert all(kernel.detail for kernel in kernels.values())
