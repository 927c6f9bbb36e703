"""Models and starts that get no tier, each with its reason. None of them fails to start for it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

from acmserve.engine.vllm.tier.cpu_tier import why_no_tier
from acmserve.engine.vllm.tier.seams import TIER_SEAMS
from acmserve.seams import Seam, broken_seams
from tests.support.broken_seam import break_seam

SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 16, "dtype": torch.float32}
FULL, WINDOW = FullAttentionSpec(**SHAPE), SlidingWindowSpec(sliding_window=64, **SHAPE)


def kv_cache(*specs: Any) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layer.{index}"], spec) for index, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)


def config(**changed: Any) -> Any:
    parallel: dict[str, Any] = {"pipeline_parallel_size": 1, "decode_context_parallel_size": 1}
    cache: dict[str, Any] = {"enable_prefix_caching": True}
    drafts = changed.pop("drafts", None)
    for part in (parallel, cache):
        part.update({name: value for name, value in changed.items() if name in part})
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        cache_config=SimpleNamespace(**cache),
        speculative_config=drafts,
    )


EAGLE = SimpleNamespace(use_eagle=lambda: True, method="eagle3")


@pytest.mark.parametrize(
    ("changed", "specs", "reason"),
    [
        ({}, (FULL, WINDOW), "the model has 2 KV cache groups"),
        ({}, (WINDOW,), r"of another kind than full attention \(SlidingWindowSpec\)"),
        ({"enable_prefix_caching": False}, (FULL,), "prefix caching is off"),
        ({"pipeline_parallel_size": 2}, (FULL,), "stands in 2 stages"),
        ({"decode_context_parallel_size": 2}, (FULL,), "stands on 2 ranks"),
        ({"drafts": EAGLE}, (FULL,), r"has KV of its own \(eagle3\)"),
    ],
)
def test_what_the_tier_is_not_for_is_named(changed: dict[str, Any], specs: tuple[Any, ...], reason: str) -> None:
    found = why_no_tier(config(**changed), kv_cache(*specs))
    assert found is not None
    assert re.search(reason, found), found


def test_the_installed_engine_has_every_part_of_the_tier() -> None:
    assert broken_seams(TIER_SEAMS) == []
    assert why_no_tier(config(), kv_cache(FULL)) is None


@pytest.mark.parametrize("seam", TIER_SEAMS, ids=[seam.name for seam in TIER_SEAMS])
def test_a_part_that_is_gone_turns_the_tier_off_and_is_named(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        break_seam(seam, patch)
        assert seam.name in (why_no_tier(config(), kv_cache(FULL)) or "")
