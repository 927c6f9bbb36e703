"""Caches that vLLM keeps in bytes: which numbers they hold, what is refused, and what a move adds to fp8's noise."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm import _custom_ops as vllm_ops

from acmserve.bench.models.fp8_ops import HAS_FP8_OPS, cut, reshape_and_cache
from acmserve.errors import MoveRefused
from acmserve.kernels.dispatch import LayerMover
from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.layouts.registry import find_layer
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope
from acmserve.kernels.runs import MoveRun
from acmserve.kernels.stored_type import VIEWS
from tests.support.kernels.cases import FP8_DTYPES, bits, fill_sources, make_layer, make_rope, slots
from tests.support.kernels.cases import Case as MoveCase

NUM_HEADS, BLOCK_SIZE, SIZE = 2, 32, 64
NAMES = [name for name, dtype in VIEWS.items() if dtype.itemsize == 1]


def layer_of(kv: Any, name: str, isa: str = "vec", **facts: Any) -> KVLayer:
    """What the registry finds for a layer of vLLM's CPU attention."""
    return find_layer("layer", SimpleNamespace(isa=isa, head_size=SIZE, kv_cache_dtype=name, **facts), kv)


def empty() -> Tensor:
    return torch.zeros(8, NUM_HEADS, BLOCK_SIZE, 2 * SIZE, dtype=torch.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_viewed_as_what_vllm_calls_them(name: str) -> None:
    kv = empty()
    layer = layer_of(kv, name, _k_scale=torch.ones(1))
    assert layer.kv.dtype == VIEWS[name]
    assert layer.kv.data_ptr() == kv.data_ptr()


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("fp8_per_token_head", torch.uint8, "each token has a scale of its own"),
        ("int8_per_token_head", torch.int8, "each token has a scale of its own"),
        ("nvfp4", torch.uint8, "a scale for each 16"),
        ("nvfp4_4over6", torch.uint8, "a scale for each 16"),
        ("turboquant_k8v4", torch.uint8, "a basis of their own"),
        ("ultraquant_4bit", torch.uint8, "packed with scales"),
        ("fp8_inc", torch.uint8, "dtype fp8_inc (torch.uint8) is not supported"),
        ("auto", torch.uint8, "dtype auto (torch.uint8) is not supported"),
        ("fp8", torch.float64, "dtype fp8 (torch.float64) is not supported"),
    ],
)
def test_what_keeps_scales_among_its_numbers_is_refused_by_name(name: str, dtype: torch.dtype, reason: str) -> None:
    with pytest.raises(MoveRefused) as refused:
        layer_of(torch.zeros(2, NUM_HEADS, BLOCK_SIZE, 2 * SIZE, dtype=dtype), name)
    assert reason in refused.value.reason
    assert name in refused.value.reason


@pytest.mark.parametrize("scales", [1, NUM_HEADS])
def test_a_scale_for_the_layer_or_for_each_head_cancels(scales: int) -> None:
    assert layer_of(empty(), "fp8", _k_scale=torch.ones(scales)).kv.dtype == torch.float8_e4m3fn


def test_several_scales_in_one_head_are_refused() -> None:
    with pytest.raises(MoveRefused, match=r"key scales of shape \(64,\) for 2 heads"):
        layer_of(empty(), "fp8", _k_scale=torch.ones(SIZE))


@pytest.mark.skipif(not HAS_FP8_OPS, reason="vLLM builds its fp8 attention for AVX-512 only")
@pytest.mark.parametrize("name", NAMES)
def test_index_functions_are_those_of_vllms_op(name: str) -> None:
    """What vLLM's op stores is found where the layout says, and our twin of the op stores the same bytes."""
    key, value = torch.randn(2, 70, NUM_HEADS, SIZE, generator=torch.Generator().manual_seed(1))
    slots = torch.randperm(8 * BLOCK_SIZE, generator=torch.Generator().manual_seed(2))[:70]
    theirs, twin = empty(), empty()
    for kv, op in ((theirs, vllm_ops.cpu_attn_reshape_and_cache), (twin, reshape_and_cache)):
        keys, values = kv.view(8, NUM_HEADS, 2 * BLOCK_SIZE, SIZE).chunk(2, dim=2)
        op(key, value, keys, values, slots, "vec", k_scale=0.5, v_scale=2.0, kv_cache_dtype=name)
    assert torch.equal(theirs, twin)
    layer = layer_of(theirs, name)
    stored_key, stored_value = reference.gather(layer.kv, layer.layout, slots)
    step = 2 * torch.finfo(layer.kv.dtype).eps
    assert (stored_key.float() * 0.5 - key).abs().max() <= step * key.abs().max()
    assert (stored_value.float() * 2.0 - value).abs().max() <= step * value.abs().max()


@pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported(), reason="vLLM's op writes this layout on machines with AMX only"
)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_amx_are_moved_as_vllms_op_stores_them(name: str) -> None:
    """Values of whole eighths lose nothing in 8 bits. A quarter of a circle exchanges two of them and a sign."""
    generator = torch.Generator().manual_seed(3)
    key, value = (torch.randint(-8, 9, (2, 40, NUM_HEADS, SIZE), generator=generator) / 8).bfloat16()
    slots = torch.randperm(4 * BLOCK_SIZE, generator=generator)[:40]
    kv = empty()
    keys, values = kv.view(8, NUM_HEADS, 2 * BLOCK_SIZE, SIZE).chunk(2, dim=2)
    vllm_ops.cpu_attn_reshape_and_cache(key, value, keys, values, slots, "amx", kv_cache_dtype=name)
    layer = replace(layer_of(kv, name, "amx", _k_scale=torch.ones(1)), rope=Rope((math.pi / 2,), 2, True))
    stored_key, stored_value = reference.gather(layer.kv, layer.layout, slots)
    assert torch.equal(stored_key.float(), key.float())
    assert torch.equal(stored_value.float(), value.float())
    mover = LayerMover([layer])
    assert mover.implementations == {"reference": 1}
    mover.move([MoveRun([0, 1, 2, 3], 0, [4, 5, 6, 7], 0, 4 * BLOCK_SIZE, 1)])
    moved_key, moved_value = reference.gather(layer.kv, layer.layout, slots + 4 * BLOCK_SIZE)
    turned = torch.cat([-key[..., 1:2], key[..., :1], key[..., 2:]], dim=-1)
    assert torch.equal(moved_key.float(), turned.float())
    assert torch.equal(bits(moved_value), bits(stored_value))


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_a_key_that_turns_beyond_the_largest_number_saturates(dtype: torch.dtype) -> None:
    """A rotation keeps the norm, not the maximum: (448, 448) turned by an eighth of a circle is (0, 634)."""
    rope = Rope((math.pi / 4,), 2, True)
    layer = make_layer(CpuVecLayout(1, 16, 2), dtype, 2, rope)
    largest = torch.finfo(dtype).max
    key = torch.full((16, 1, 2), largest).to(dtype)
    reference.scatter(layer.kv, layer.layout, torch.arange(16), key, key)
    LayerMover([layer]).move([MoveRun([0], 0, [1], 0, 16, 1)])
    moved, value = reference.gather(layer.kv, layer.layout, torch.arange(16, 32))
    assert torch.equal(moved[:, 0, 1].float(), torch.full((16,), largest))
    assert moved.float().isfinite().all()
    assert torch.equal(bits(value), bits(key)), "values are copied bit for bit"


@pytest.mark.parametrize("dtype", FP8_DTYPES)
@pytest.mark.parametrize("kind", ["rounded", "cut"])
def test_attention_over_moved_keys_is_about_as_far_from_float32_as_over_cached_ones(
    dtype: torch.dtype, kind: str
) -> None:
    """What 1e-3 cannot mean in 8 bits: `exact` itself is further from float32. A move adds one more such rounding.

    float32   --- fp8's own noise --->   exact         R(p + d) k, stored once
              ----- sqrt(2) of it --->   moved         R(p) k, stored, turned by d, stored again
              -- as far as nonsense ->   not turned    the negative control
    """
    num_tokens, position, delta = 256, 3000, -1980
    store = reference.narrow if kind == "rounded" else cut
    rope = make_rope(SIZE, True)
    generator = torch.Generator().manual_seed(5)
    key, value = torch.randn(2, num_tokens, 1, SIZE, generator=generator)
    queries = torch.randn(64, SIZE, generator=generator)
    layer = make_layer(CpuVecLayout(1, BLOCK_SIZE, SIZE), dtype, 16, rope)
    run = MoveRun(range(8), 0, range(8, 16), 0, num_tokens, delta)
    src, dst = slots(run.source, BLOCK_SIZE), slots(run.destination, BLOCK_SIZE)
    reference.scatter(layer.kv, layer.layout, src, store(roped(key, rope, position), dtype), value.to(dtype))
    LayerMover([layer]).move([run])

    right = roped(key, rope, position + delta)
    exact = store(right, dtype)
    unturned, _ = reference.gather(layer.kv, layer.layout, src)
    moved, _ = reference.gather(layer.kv, layer.layout, dst)
    expected = attend(queries, right, value)
    own, ours, control = ((attend(queries, k, value) - expected).norm() for k in (exact, moved, unturned))
    assert 0 < ours < 2 * own
    assert control > 3 * own


def roped(key: Tensor, rope: Rope, first: int) -> Tensor:
    return torch.stack([reference.rotate(row, rope, first + i) for i, row in enumerate(key)])


def attend(queries: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = queries.double() @ key[:, 0].double().T / SIZE**0.5
    return scores.softmax(dim=-1) @ value[:, 0].double()


def test_a_move_of_two_heads_with_scales_is_a_move_of_the_numbers() -> None:
    """The stored numbers of each head, whatever its scale, are turned and rounded once."""
    layer = make_layer(CpuVecLayout(NUM_HEADS, BLOCK_SIZE, SIZE), torch.float8_e4m3fn, 4, make_rope(SIZE, False))
    case = MoveCase((layer,), (MoveRun([0, 1], 0, [2, 3], 0, 40, 17),))
    fill_sources(case, seed=9)
    stored, _ = reference.gather(layer.kv, layer.layout, case.src_slots)
    scales = torch.tensor([0.037, 2.5], dtype=torch.float64)[None, :, None]
    assert layer.rope is not None
    exact = reference.rotate(stored.double() * scales, layer.rope, 17)
    LayerMover([layer]).move(case.runs)
    moved, _ = reference.gather(layer.kv, layer.layout, case.dst_slots)
    requantised = reference.narrow(exact / scales, torch.float8_e4m3fn)
    assert (moved.float() == requantised.float()).double().mean() > 0.999, "apart from ties, each scale cancels"
