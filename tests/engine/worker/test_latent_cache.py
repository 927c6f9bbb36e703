"""Latent caches as vLLM makes them of its own specs: what moves in them, what is refused, and the rotation of DeepSeek.

No engine starts here. `test_latent.py` has the one that the CPU can run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config, PretrainedConfig
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SparseCacheRole,
    UniformTypeKVCacheSpecs,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from acmserve.engine.groups.facts import read_groups
from acmserve.engine.worker.cache_kind import INDEXER, POOLED, why_never
from acmserve.engine.worker.model_verdict import judge_model
from acmserve.errors import MoveRefused
from acmserve.kernels.dispatch import LayerMover
from acmserve.kernels.layouts.registry import find_layer
from acmserve.kernels.movers import reference
from acmserve.kernels.runs import BlockSpan
from tests.support.engine.latent import DEEPSEEK_YARN
from tests.support.kernels.cases import HALF_STEP, HALF_ULP, bits, cut_runs, make_rope, slots

NUM_BLOCKS, BLOCK_SIZE, LATENT, ROPE = 6, 64, 512, 64
DS_MLA_BYTES = 656


def spec_of(cache_dtype: str, dtype: torch.dtype, **facts: Any) -> MLAAttentionSpec:
    return MLAAttentionSpec(
        block_size=BLOCK_SIZE,
        num_kv_heads=1,
        head_size=LATENT + ROPE,
        dtype=dtype,
        cache_dtype_str=cache_dtype,
        state_content_bytes=DS_MLA_BYTES if cache_dtype == "fp8_ds_mla" else None,
        **facts,
    )


def view_of(spec: MLAAttentionSpec) -> Tensor:
    """A cache of random bits, as vLLM hands it to a connector: one layer of two that share their memory."""
    size = 2 * NUM_BLOCKS * spec.page_size_bytes
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(-128, 128, (size,), dtype=torch.int8, generator=generator)
    tensor: Any = SimpleNamespace(
        layers=["a", "b"], layer_stride=NUM_BLOCKS * spec.page_size_bytes, block_stride=spec.page_size_bytes, offset=0
    )
    return create_kv_cache_views(raw, spec, NUM_BLOCKS, KVCacheLayout.LBHNC, tensor)[1]


def attention(cache_dtype: str) -> Any:
    return SimpleNamespace(
        kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, head_size=LATENT + ROPE, kv_cache_dtype=cache_dtype
    )


@pytest.mark.parametrize(
    ("cache_dtype", "dtype", "key_type"),
    [
        ("auto", torch.bfloat16, torch.bfloat16),
        ("auto", torch.float32, torch.float32),
        ("fp8", torch.uint8, torch.float8_e4m3fn),
        ("fp8_ds_mla", torch.uint8, torch.bfloat16),
    ],
)
def test_the_rotary_key_turns_and_everything_else_is_copied(
    cache_dtype: str, dtype: torch.dtype, key_type: torch.dtype
) -> None:
    """By bytes: the last 64 numbers of a row are the key, in its own type. In front of it no bit changes."""
    kv, rope, delta = view_of(spec_of(cache_dtype, dtype)), make_rope(ROPE, False), -1980
    source, destination = BlockSpan([1, 4], 50, 70), BlockSpan([0, 2], 9, 70)
    src, dst = slots(source, BLOCK_SIZE), slots(destination, BLOCK_SIZE)
    generator = torch.Generator().manual_seed(2)
    keys = torch.randn(70, ROPE, generator=generator).to(key_type)
    rows = kv.view(torch.uint8)[:, 0]
    num_key_bytes = ROPE * key_type.itemsize
    rows[src // BLOCK_SIZE, src % BLOCK_SIZE, -num_key_bytes:] = keys.view(torch.uint8)
    before = rows.clone()

    layer = replace(find_layer("layer", attention(cache_dtype), kv), rope=rope)
    assert layer.kv.data_ptr() == kv.data_ptr()
    LayerMover([layer]).move(cut_runs(source, destination, {30: delta, 70: 0}, BLOCK_SIZE))

    source, moved = before[src // BLOCK_SIZE, src % BLOCK_SIZE], rows[dst // BLOCK_SIZE, dst % BLOCK_SIZE]
    assert torch.equal(moved[:, :-num_key_bytes], source[:, :-num_key_bytes])
    assert torch.equal(moved[30:], source[30:])
    turned = moved[:30, -num_key_bytes:].contiguous().view(key_type)
    exact = reference.rotate(keys[:30], rope, delta)
    allowed = 2e-6 * exact.norm(dim=-1, keepdim=True) + HALF_ULP[key_type] * exact.abs() + HALF_STEP.get(key_type, 0.0)
    assert ((turned.double() - exact).abs() <= allowed).all()
    assert not torch.equal(bits(turned), bits(keys[:30]))
    rows[dst // BLOCK_SIZE, dst % BLOCK_SIZE] = before[dst // BLOCK_SIZE, dst % BLOCK_SIZE]
    assert torch.equal(rows, before), "a byte outside of the destination slots changed"


@pytest.mark.parametrize("num_bytes", [584, 352])
def test_rows_of_another_size_are_refused(num_bytes: int) -> None:
    """DeepSeek V4's rows, and NVFP4's."""
    with pytest.raises(MoveRefused, match="for a latent of 512 is not supported"):
        find_layer("layer", attention("fp8_ds_mla"), torch.zeros(2, 1, 64, num_bytes, dtype=torch.uint8))
    with pytest.raises(MoveRefused, match="the rotary key is kept in 8 bits"):
        find_layer("layer", attention("nvfp4_ds_mla"), torch.zeros(2, 1, 64, num_bytes, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [(torch.uint8, "dtype auto (torch.uint8)"), (torch.bfloat16, "rows of 132 for head size None")],
)
def test_the_cache_of_an_indexer_is_no_attentions(dtype: torch.dtype, reason: str) -> None:
    """It would be refused by the worker, too, where nothing else had refused it: a copy of it is no copy of K and V."""
    with pytest.raises(MoveRefused) as refused:
        find_layer("layer", SimpleNamespace(head_dim=132), torch.zeros(2, 1, 64, 132, dtype=dtype))
    assert reason in refused.value.reason


PLAIN_LATENT = spec_of("auto", torch.bfloat16)
INDEX_KEYS = MLAAttentionSpec(
    block_size=BLOCK_SIZE, num_kv_heads=1, head_size=132, dtype=torch.uint8, cache_role=SparseCacheRole.INDEXER
)
FULL = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
WINDOW = SlidingWindowMLASpec(
    block_size=BLOCK_SIZE, num_kv_heads=1, head_size=512, dtype=torch.bfloat16, sliding_window=128
)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (FULL, None),
        (PLAIN_LATENT, None),
        (spec_of("fp8_ds_mla", torch.uint8), None),
        (INDEX_KEYS, INDEXER),
        (replace(PLAIN_LATENT, tokens_per_state=4), POOLED),
        (replace(PLAIN_LATENT, model_version="deepseek_v4"), POOLED),
        (WINDOW, None),
        (UniformTypeKVCacheSpecs(block_size=BLOCK_SIZE, kv_cache_specs={"a": PLAIN_LATENT, "b": INDEX_KEYS}), INDEXER),
    ],
    ids=["full", "latent", "fp8_ds_mla", "indexer", "pooled", "DeepSeek V4", "window", "latent and indexer"],
)
def test_a_cache_that_never_moves_is_refused_by_name(spec: KVCacheSpec, reason: str | None) -> None:
    assert why_never([spec]) == reason


def test_of_several_groups_the_one_that_never_moves_is_named() -> None:
    groups = [KVCacheGroupSpec(["a"], PLAIN_LATENT), KVCacheGroupSpec(["b"], INDEX_KEYS)]
    assert why_never([group.kv_cache_spec for group in groups]) == INDEXER


def test_a_window_over_latents_is_no_kind_that_moves() -> None:
    assert [group.is_full for group in read_groups([FULL, PLAIN_LATENT])] == [True, True]
    with pytest.raises(MoveRefused, match="SlidingWindowMLASpec"):
        read_groups([FULL, WINDOW])


@pytest.mark.parametrize(
    "config",
    [
        DeepseekV2Config(
            num_hidden_layers=2,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            rope_parameters=DEEPSEEK_YARN,
        ),
        DeepseekV3Config(num_hidden_layers=2, first_k_dense_replace=1, rope_parameters=DEEPSEEK_YARN),
    ],
    ids=["DeepSeek V2", "DeepSeek V3"],
)
def test_the_rotation_of_deepseek_is_measured(config: PretrainedConfig, tmp_path: Path) -> None:
    """On vLLM's own classes, built small: 64 dimensions of what reaches the attention turn in interleaved pairs."""
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]
    config.save_pretrained(tmp_path)
    verdict = judge_model(str(tmp_path))
    assert verdict.ropes is not None, verdict.refusal
    assert len(verdict.ropes) == 2
    assert {(rope.rot_dim, rope.is_neox) for rope in verdict.ropes.values() if rope is not None} == {(ROPE, False)}
    assert verdict.refusal == "engine: prefix caching is off", "vLLM's CPU backend for it keeps no prefixes"
