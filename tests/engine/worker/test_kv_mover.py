"""What a worker finds when it looks at its KV caches: nothing that a model brings stops the engine; it is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from acmserve.engine.worker.copies import KVCopy
from acmserve.engine.worker.kv_mover import Abilities, KVMover

SHAPE = (4, 2, 32, 128)
NO_MODEL = torch.nn.Module()


def inspect(caches: dict[str, Any], isa: str = "vec", num_threads: int = 1) -> tuple[KVMover, Abilities]:
    """A worker with these KV caches, in attention layers of head size 64, and a model whose keys nobody knows."""
    context = {name: SimpleNamespace(isa=isa, head_size=64, kv_cache_dtype="auto") for name in caches}
    config: Any = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=context))
    mover = KVMover(config, caches, num_threads)
    return mover, mover.inspect(NO_MODEL)


def test_keys_that_nobody_knows_may_be_copied_and_not_moved() -> None:
    kv = torch.randn(SHAPE)
    mover, abilities = inspect({"layer.0": kv})
    assert abilities.copy_refusal is None
    assert abilities.move_refusal is not None
    mover.carry_out([KVCopy("r", 0, 0, 32, (1,), (3,))])
    assert torch.equal(kv[3], kv[1])


@pytest.mark.parametrize(
    ("caches", "isa", "reason"),
    [
        ({"a": torch.zeros(4, 2, 128, 32).transpose(2, 3)}, "vec", "vec needs contiguous heads"),
        ({"a": torch.zeros(4, 2, 24, 128, dtype=torch.bfloat16)}, "amx", "divisible by 16"),
        ({"a": torch.zeros(SHAPE)}, "amx", "amx holds bfloat16 only"),
        ({"a": torch.zeros(SHAPE)}, "latent", "latent"),
        ({"a": torch.zeros(SHAPE), "b": torch.zeros(5, 2, 32, 128)}, "vec", "share slots"),
        ({"a": torch.zeros(SHAPE), "b": torch.zeros(4, 2, 16, 128)}, "vec", "share slots"),
        ({"a": torch.zeros(SHAPE, dtype=torch.uint8)}, "vec", "dtype"),
        ({"a": torch.zeros(4, 32, 576)}, "vec", "shape"),
        ({"a": torch.zeros(4, 2, 32, 192)}, "vec", "rows of 192"),
        ({"a": torch.zeros(SHAPE)}, "neon", "layout 'neon'"),
        ({"a": [torch.zeros(4, 8), torch.zeros(4, 16)]}, "vec", "keeps a list"),
        ({}, "vec", "at least one layer"),
    ],
)
def test_a_kv_cache_that_does_not_fit_is_refused_by_name(caches: dict[str, Any], isa: str, reason: str) -> None:
    _, abilities = inspect(caches, isa)
    assert abilities.copy_refusal is not None
    assert abilities.copy_refusal.startswith("kv cache: ")
    assert reason in abilities.copy_refusal
    assert abilities.move_refusal == abilities.copy_refusal
