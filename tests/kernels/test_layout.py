"""The layouts as vLLM's own CPU op writes them, and a move proven on it: no index function of ours in between."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm import _custom_ops as vllm_ops
from vllm.v1.kv_cache_interface import FullAttentionSpec, create_kv_cache_views
from vllm.v1.kv_cache_layout import KVCacheLayout

from acmserve.errors import MoveRefused
from acmserve.kernels import dispatch
from acmserve.kernels.layout import KVLayer, KVLayout
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.layouts.latent import LatentLayout
from acmserve.kernels.layouts.registry import find_layer
from acmserve.kernels.layouts.unequal import UnequalLayout
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope
from acmserve.kernels.runs import MoveRun
from tests.support.kernels.cases import POISON, Case, bits, check_result, fill_sources, make_rope, slots

NEEDS_AMX = pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported(), reason="vLLM's op writes this layout on machines with AMX only"
)
GEOMETRIES = [
    ("vec", torch.float32, 32, 64),
    ("vec", torch.float32, 128, 64),
    ("vec", torch.bfloat16, 128, 96),
    ("vec", torch.float16, 32, 128),
    ("vec16", torch.float32, 16, 80),
    ("vec16", torch.bfloat16, 48, 80),
    pytest.param("amx", torch.bfloat16, 32, 64, marks=NEEDS_AMX),
    pytest.param("amx", torch.bfloat16, 128, 96, marks=NEEDS_AMX),
]
NUM_HEADS = 2


def cache_with_vllm(isa: str, block_size: int, slots: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A poisoned KV cache into which vLLM's op `cpu_attn_reshape_and_cache` wrote K and V `[n, heads, head_size]`."""
    head_size = key.shape[-1]
    kv = torch.full((8, NUM_HEADS, block_size, 2 * head_size), POISON).to(key.dtype)
    # As vllm/v1/attention/backends/cpu_attn.py:do_kv_cache_update passes it.
    key_cache, value_cache = kv.view(8, NUM_HEADS, 2 * block_size, head_size).chunk(2, dim=2)
    vllm_ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slots, isa)
    return kv


def layout_of(isa: str, kv: Tensor) -> KVLayout:
    """The layout that the registry finds for a layer of vLLM's CPU attention."""
    return find_layer("layer", SimpleNamespace(isa=isa, head_size=kv.shape[3] // 2), kv).layout


def roped(key: Tensor, rope: Rope, first_position: int) -> Tensor:
    """Keys `[n, heads, head_size]` at consecutive positions, rotated in float64 and rounded once."""
    turned = [reference.rotate(row, rope, first_position + i) for i, row in enumerate(key)]
    return torch.stack(turned).to(key.dtype)


@pytest.mark.parametrize(("isa", "dtype", "block_size", "head_size"), GEOMETRIES)
def test_index_functions_are_vllms(isa: str, dtype: torch.dtype, block_size: int, head_size: int) -> None:
    key, value = torch.randn(2, 3 * block_size, NUM_HEADS, head_size).to(dtype)
    slots = torch.randperm(8 * block_size)[: 3 * block_size]
    theirs = cache_with_vllm(isa, block_size, slots, key, value)
    ours = torch.full_like(theirs, POISON)
    reference.scatter(ours, layout_of(isa, ours), slots, key, value)
    assert torch.equal(bits(ours), bits(theirs))


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("isa", "dtype", "block_size", "head_size"), GEOMETRIES)
def test_a_moved_key_is_the_key_cached_at_its_new_position(
    isa: str, dtype: torch.dtype, block_size: int, head_size: int, is_neox: bool
) -> None:
    """Cache a key roped at p by vLLM's op and move it by delta: as if vLLM had cached it roped at p + delta."""
    num_tokens, position, delta = 2 * block_size - 3, 4096, -1980
    rope = make_rope(head_size // 2, is_neox)
    key, value = torch.randn(2, num_tokens, NUM_HEADS, head_size, generator=torch.Generator().manual_seed(2)).to(dtype)
    run = MoveRun([7, 1, 4], block_size - 5, [2, 6, 0][: -(-(9 + num_tokens) // block_size)], 9, num_tokens, delta)
    src, dst = slots(run.source, block_size), slots(run.destination, block_size)

    kv = cache_with_vllm(isa, block_size, src, roped(key, rope, position), value)
    layout = layout_of(isa, kv)
    mover = dispatch.LayerMover([KVLayer(kv, layout, rope)])
    assert mover.implementations == {"cpu": 1}
    mover.move([run])

    fresh = cache_with_vllm(isa, block_size, dst, roped(key, rope, position + delta), value)
    moved_key, moved_value = reference.gather(kv, layout, dst)
    fresh_key, fresh_value = reference.gather(fresh, layout, dst)
    assert torch.equal(bits(moved_value), bits(fresh_value))
    # Both sides are rounded to the storage type, the moved one twice.
    unit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    norm = key.double().norm(dim=-1, keepdim=True)
    assert ((moved_key.double() - fresh_key.double()).abs() <= 3 * unit * norm).all()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 16, 64, 512), "a latent cache has one head"),
        ((1, 16, 64, 0), "a latent cache needs a latent"),
        ((1, 0, 64, 512), "has an empty dimension"),
    ],
)
def test_a_latent_cache_has_one_head_and_a_latent(sizes: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LatentLayout(*sizes)


def test_a_layer_of_latent_attention_is_found() -> None:
    attention = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=64, head_size=576)
    layer = find_layer("layer", attention, torch.zeros(2, 16, 576))
    assert layer.layout == LatentLayout(1, 16, 64, 512)
    assert layer.kv.shape == (2, 1, 16, 576)
    with_head = find_layer("layer", attention, torch.zeros(2, 1, 16, 576))
    assert (with_head.layout, with_head.kv.shape) == (layer.layout, layer.kv.shape)
    for shape in ((2, 16, 656), (2, 2, 16, 576), (2, 1, 16, 656)):
        with pytest.raises(MoveRefused, match="for a latent of 512 is not supported"):
            find_layer("layer", attention, torch.zeros(shape))


def test_the_whole_rotary_key_of_a_latent_cache_turns() -> None:
    layout = LatentLayout(1, 16, 64, 512)
    with pytest.raises(ValueError, match="rot_dim 32 is not the 64 dimensions of k_pe"):
        KVLayer(torch.zeros(2, 16, 576).unsqueeze(1), layout, make_rope(32, False))


def test_values_of_another_size_than_keys_are_found_and_moved() -> None:
    """MiMo V2's cache, as vLLM makes it of its own spec."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=192, head_size_v=128, dtype=torch.bfloat16)
    raw = torch.randint(-128, 128, (5 * spec.page_size_bytes,), dtype=torch.int8)
    tensor: Any = SimpleNamespace(layers=["a"], layer_stride=len(raw), block_stride=spec.page_size_bytes, offset=0)
    (kv,) = create_kv_cache_views(raw, spec, 5, KVCacheLayout.LBHNC, tensor)
    attention = SimpleNamespace(head_size=192, head_size_v=128)
    layer = replace(find_layer("layer", attention, kv), rope=make_rope(64, True))
    assert layer.layout == UnequalLayout(2, 16, 192, 128)
    case = Case((layer,), (MoveRun([1, 4], 5, [3, 0], 1, 20, -309),))
    fill_sources(case, seed=1)
    after = case.clone()
    dispatch.move(after.layers, after.runs)
    check_result(case, after)
    for sizes in ((192, 192), (192, 64), (192, None)):
        with pytest.raises(MoveRefused, match="rows of 320 for head size 192 are not supported"):
            find_layer("layer", SimpleNamespace(head_size=sizes[0], head_size_v=sizes[1]), kv)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dtype": torch.float64}, "only bfloat16, float16, float32, float8_e4m3fn, float8_e5m2 can be moved"),
        ({"shape": (4, 2, 32, 64)}, "is not"),
        ({"kind": CpuAmxLayout}, "amx holds bfloat16 and fp8 only"),
        ({"rot_dim": 66}, "rot_dim 66 exceeds head_size 64"),
        ({"transposed": True}, "vec needs contiguous heads"),
    ],
)
def test_a_cache_that_does_not_fit_its_layout_is_refused(kwargs: dict[str, object], message: str) -> None:
    kind: Any = kwargs.get("kind", CpuVecLayout)
    kv = torch.zeros(kwargs.get("shape", (4, 2, 32, 128)), dtype=kwargs.get("dtype", torch.float32))  # type: ignore[call-overload]
    if kwargs.get("transposed"):
        kv = torch.zeros(4, 2, 128, 32).transpose(2, 3)
    rot_dim = kwargs.get("rot_dim", 64)
    assert isinstance(rot_dim, int)
    with pytest.raises(ValueError, match=message):
        KVLayer(kv, kind(2, 32, 64), make_rope(rot_dim, True))
