"""What a worker finds in its KV caches: nothing that a model brings stops the engine. What does not fit is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

from acmserve.engine.worker.copies import KVCopy
from acmserve.engine.worker.kv_mover import Abilities, KVMover
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout

SHAPE = (4, 2, 32, 128)
NO_MODEL = torch.nn.Module()


def inspect(
    caches: dict[str, Any], isa: str = "vec", blocks: tuple[int, ...] = (4, 32), num_in_groups: int | None = None
) -> tuple[KVMover, Abilities]:
    """A worker with these KV caches, in attention layers of head size 64, and a model whose keys nobody knows.

    `blocks` are the scheduler's: how many, and the tokens in each (of each group). Several groups have a layer each.
    """
    heads = {name: kv.shape[-1] // 2 if len(blocks) > 2 else 64 for name, kv in caches.items()}
    context = {name: SimpleNamespace(isa=isa, head_size=heads[name], kv_cache_dtype="auto") for name in caches}
    config: Any = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=context))
    num_blocks, *sizes = blocks
    names = [[name] for name in list(caches)[:num_in_groups]] if len(sizes) > 1 else [list(caches)]
    groups = [
        SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size), layer_names=found)
        for size, found in zip(sizes, names, strict=True)
    ]
    cache_config: Any = SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=groups)
    mover = KVMover(config, cache_config, caches, 1)
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
        ({"a": torch.zeros(SHAPE)}, "amx", "amx holds bfloat16 and fp8 only"),
        ({"a": torch.zeros(SHAPE)}, "latent", "latent"),
        ({"a": torch.zeros(SHAPE), "b": torch.zeros(5, 2, 32, 128)}, "vec", "5 blocks of 32 tokens"),
        ({"a": torch.zeros(SHAPE), "b": torch.zeros(4, 2, 16, 128)}, "vec", "4 blocks of 16 tokens"),
        ({"a": torch.zeros(SHAPE), "b": torch.zeros(8, 2, 16, 128)}, "vec", "share slots"),
        ({"a": torch.zeros(2, 2, 64, 128)}, "vec", "2 blocks of 64 tokens, where the scheduler has 4 of 32"),
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


@pytest.mark.parametrize("row_size", [128, 64, 32])
def test_a_tensor_may_cut_the_schedulers_blocks_into_smaller_ones(row_size: int) -> None:
    """The scheduler's blocks of 128 tokens, in a tensor whose attention kernel reads blocks of `row_size` tokens.

    scheduler    block 1 -> block 3, 100 tokens from token 20 on
    tensor       tokens 148 to 247 of the cache -> tokens 404 to 503, and no other
    """
    layout = CpuVecLayout(1, row_size, 64)
    kv = torch.randn(4 * 128 // row_size, 1, row_size, 128)
    before, expected = read_tokens(layout, kv), read_tokens(layout, kv)
    expected[404:504] = before[148:248]
    mover, abilities = inspect({"a": kv}, blocks=(4, 128))
    assert abilities.copy_refusal is None
    mover.carry_out([KVCopy("r", 20, 20, 100, (1,), (3,))])
    assert torch.equal(read_tokens(layout, kv), expected)


def read_tokens(layout: CpuVecLayout, kv: torch.Tensor) -> torch.Tensor:
    """K and V of each slot of a cache with one head, `[num_slots, row_size]`."""
    t, d = torch.arange(layout.block_size)[:, None], torch.arange(layout.head_size)[None, :]
    index = torch.cat((layout.key_index(t, d), layout.value_index(t, d)), dim=1)
    return kv.flatten(1)[:, index].flatten(0, 1)


def test_groups_of_several_block_sizes_are_copied_each_in_its_own_layers() -> None:
    """Blocks of 32 and of 64 tokens, of which each pair of layers has as many bytes."""
    narrow, wide = torch.randn(4, 2, 64, 64), torch.randn(4, 2, 32, 128)
    before = narrow.clone(), wide.clone()
    mover, abilities = inspect({"narrow": narrow, "wide": wide}, blocks=(4, 64, 32))
    assert abilities.copy_refusal is None
    mover.carry_out([KVCopy("r", 0, 0, 64, (1,), (3,), group=0), KVCopy("r", 32, 32, 32, (2,), (0,), group=1)])
    assert torch.equal(narrow[3], before[0][1])
    assert torch.equal(narrow[:3], before[0][:3])
    assert torch.equal(wide[0], before[1][2])
    assert torch.equal(wide[1:], before[1][1:])


def test_a_layer_that_no_group_has_is_refused() -> None:
    caches = {"a": torch.zeros(SHAPE), "b": torch.zeros(SHAPE)}
    _, abilities = inspect({**caches, "c": torch.zeros(SHAPE)}, blocks=(4, 32, 32), num_in_groups=2)
    assert abilities.copy_refusal == "kv cache: layer c is in none of 2 groups"


@pytest.mark.parametrize(
    ("method", "parallel_drafting", "reason"),
    [
        (None, False, None),
        ("ngram", False, None),
        ("suffix", False, None),
        ("eagle", False, None),
        ("eagle3", False, None),
        ("mtp", False, None),
        ("draft_model", False, None),
        ("eagle3", True, "engine: speculative decoding with parallel drafts is not supported"),
        ("dflash", True, "engine: speculative decoding by dflash is not supported"),
        ("dspark", False, "engine: speculative decoding by dspark is not supported"),
        ("medusa", False, "engine: speculative decoding by medusa is not supported"),
    ],
)
def test_drafters_are_refused_by_name(method: str | None, parallel_drafting: bool, reason: str | None) -> None:
    drafts = SimpleNamespace(method=method, parallel_drafting=parallel_drafting) if method else None
    assert judged(drafts) == Abilities(reason, reason)


@pytest.mark.parametrize("kind", ["pipeline", "decode_context", "prefill_context"])
def test_parallelism_that_spreads_tokens_is_refused_by_name(kind: str) -> None:
    reason = f"engine: {kind.removeprefix('decode_').removeprefix('prefill_')} parallelism is not supported"
    assert judged(None, **{kind: 2}) == Abilities(reason, reason)


def judged(drafts: object, **num_ranks: int) -> Abilities:
    """The verdict on an engine of these drafts and so many ranks of a kind, which are 1 elsewhere."""
    parallel = dict.fromkeys(("pipeline", "decode_context", "prefill_context"), 1) | num_ranks
    config: Any = SimpleNamespace(
        speculative_config=drafts,
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        parallel_config=SimpleNamespace(**{f"{name}_parallel_size": size for name, size in parallel.items()}),
    )
    spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32)
    cache_config: Any = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    return Abilities.of_engine(config, cache_config)
