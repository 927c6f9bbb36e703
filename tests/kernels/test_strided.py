"""The Triton kernel in Triton's interpreter, on CPU tensors, against the reference."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from acmserve.kernels.layout import Isa, KVLayout
from acmserve.kernels.slots import Segment, slot_range
from tests.kernels.cases import HALF_ULP, Case, check_result, fill_sources, make_layer, make_rope, strided_cases

# Triton 3.9's interpreter cuts float32 to bfloat16 (`cast_impl` passes no rounding mode), GPUs round to nearest.
INTERPRETER_ERROR = {**HALF_ULP, torch.bfloat16: 2 * HALF_ULP[torch.bfloat16]}


@pytest.fixture(scope="module")
def strided() -> Iterator[ModuleType]:
    """The kernel's module, decorated anew so that its `triton.jit` makes an interpreted function."""
    from acmserve.kernels import strided as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.reload(module)
    importlib.reload(module)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=strided_cases())
def test_move(strided: ModuleType, case: Case) -> None:
    after = case.clone()
    strided.StridedMover(after.layers).move(after.src_slots, after.dst_slots, after.segments)
    check_result(case, after, INTERPRETER_ERROR)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3)])
def test_move_in_stride_orders_of_vllm(strided: ModuleType, order: tuple[int, ...]) -> None:
    """Three groups in one call: two ropes and a layer without positions."""
    layout = KVLayout(Isa.STRIDED, 2, 16, 80)
    ropes = [make_rope(80, True), make_rope(80, True), make_rope(20, False), None]
    layers = tuple(make_layer(layout, torch.bfloat16, 7, rope, order) for rope in ropes)
    src, dst = slot_range([5, 0, 3], 3, 41, 16), slot_range([6, 2, 4], 7, 41, 16)
    case = Case(layers, src, dst, (Segment(0, 20, 131_072), Segment(20, 30, 0), Segment(30, 41, -7)))
    fill_sources(case, seed=5)
    after = case.clone()
    strided.StridedMover(after.layers).move(src, dst, case.segments)
    check_result(case, after, INTERPRETER_ERROR)
