"""A KV layout is one file and one line of the registry: here a toy, found by the worker and moved like any other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import Tensor

from acmserve.engine.worker.copies import KVCopy
from acmserve.engine.worker.kv_mover import KVMover
from acmserve.kernels.dispatch import LayerMover
from acmserve.kernels.layout import KVLayer, KVLayout, read_shape
from acmserve.kernels.layouts.registry import LAYOUTS
from acmserve.kernels.runs import BlockSpan, MoveRun
from tests.support.kernels.cases import Case, check_result, cut_runs, fill_sources, make_layer, make_rope


@dataclass(frozen=True, slots=True)
class ZippedLayout(KVLayout):
    """K and V of a token take turns, number by number."""

    name: ClassVar[str] = "zipped"

    @classmethod
    def probe(cls, attention: Any, kv: Tensor) -> tuple[Tensor, Self] | None:
        return (kv, cls(*read_shape(attention, kv))) if getattr(attention, "isa", None) == "zipped" else None

    def key_index(self, t: Tensor, d: Tensor) -> Tensor:
        return t * self.row_size + 2 * d

    def value_index(self, t: Tensor, d: Tensor) -> Tensor:
        return t * self.row_size + 2 * d + 1


def make_case() -> Case:
    layout = ZippedLayout(2, 16, 32)
    layers = (make_layer(layout, torch.float32, 5, make_rope(32, True)), make_layer(layout, torch.float32, 5, None))
    case = Case(layers, cut_runs(BlockSpan([1, 4], 5, 20), BlockSpan([3, 0], 1, 20), {8: 0, 20: -77}, 16))
    fill_sources(case, seed=1)
    return case


def test_the_reference_moves_it() -> None:
    case = make_case()
    after = case.clone()
    mover = LayerMover(after.layers)
    assert mover.implementations == {"reference": 2}
    mover.move(after.runs)
    check_result(case, after)


def test_the_worker_finds_it_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = make_case().layers[0].kv
    context = {"layer": SimpleNamespace(isa="zipped", head_size=32, kv_cache_dtype="auto")}
    config: Any = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=context))
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16))
    cache_config: Any = SimpleNamespace(num_blocks=kv.shape[0], kv_cache_groups=[group])
    mover = KVMover(config, cache_config, {"layer": kv}, 1)
    assert mover.inspect(torch.nn.Module()).copy_refusal == "kv cache: CPU layout 'zipped' is not supported"

    monkeypatch.setattr("acmserve.kernels.layouts.registry.LAYOUTS", [*LAYOUTS, ZippedLayout])
    before = Case((KVLayer(kv.clone(), ZippedLayout(2, 16, 32), None),), (MoveRun([1], 0, [2], 0, 16, 0),))
    assert mover.inspect(torch.nn.Module()).copy_refusal is None
    mover.carry_out([KVCopy("r", 0, 0, 16, (1,), (2,))])
    check_result(before, replace(before, layers=(KVLayer(kv, ZippedLayout(2, 16, 32), None),)))
