"""Rotations found in vLLM's own rotary modules, and refusals by name; each family against vLLM's own rotation."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from acmserve.engine.worker.rope_check import rope_of_module, ropes_of_model
from acmserve.errors import MoveRefused
from acmserve.kernels.movers import reference

HEAD_SIZE = 64
FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "large theta": {"rope_theta": 1_000_000},
    "partial": {"partial_rotary_factor": 0.25},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "static ntk": {"rope_type": "ntk", "factor": 8.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn, truncated off": {
        "rope_type": "yarn",
        "rope_theta": 150_000,
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 256,
    },
    "yarn, own magnitude": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 0.7,
        "original_max_position_embeddings": 1024,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "mrope": {"rope_type": "default", "mrope_section": [8, 12, 12]},
    "mrope, interleaved": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
    "mrope, yarn": {
        "rope_type": "yarn",
        "mrope_section": [8, 12, 12],
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "deepseek yarn": {
        "rope_type": "deepseek_yarn",
        "factor": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 1024,
    },
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.01 * i for i in range(HEAD_SIZE // 2)],
    "long_factor": [1.0 + 0.5 * i for i in range(HEAD_SIZE // 2)],
}


@pytest.fixture(scope="module", autouse=True)
def vllm_config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


def make_module(parameters: dict[str, Any], is_neox: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    return get_rope(HEAD_SIZE, 4096, is_neox, parameters, dtype)


@pytest.mark.parametrize("delta", [-1980, 2031])
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_turning_vllms_key_gives_vllms_key_at_the_new_position(family: str, is_neox: bool, delta: int) -> None:
    """vLLM's rotation at p, then ours by delta, is vLLM's at p + delta, magnitude included exactly once."""
    module = make_module(FAMILIES[family], is_neox)
    rope = rope_of_module(module)
    assert rope.is_neox is is_neox
    positions = torch.arange(2000, 4096, 131) if delta < 0 else torch.arange(0, 2000, 131)
    key = torch.randn(len(positions), HEAD_SIZE, generator=torch.Generator().manual_seed(3))
    at_source, at_destination = (turn_by_vllm(module, where, key) for where in (positions, positions + delta))
    error = (reference.rotate(at_source, rope, delta) - at_destination).norm(dim=-1) / key.norm(dim=-1)
    # vLLM rounds position * inv_freq to float32: 2e-4 radians at 4,096 positions.
    assert error.max() <= 4e-4
    unturned = (at_source - at_destination).norm(dim=-1) / key.norm(dim=-1)
    assert unturned.min() > 0.1


def turn_by_vllm(module: Any, positions: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The key as vLLM caches it at these positions; M-RoPE gets the three equal positions of text."""
    if getattr(module, "mrope_section", None):
        positions = positions.expand(3, -1)
    forward = getattr(module, "forward_native", module.forward)
    turned: torch.Tensor = forward(positions, torch.zeros_like(key), key.clone())[1]
    return turned


@pytest.mark.parametrize(("original", "mscale"), [(1024, None), (4096, None), (1024, 1.3)])
def test_long_rope_keeps_the_factors_it_started_with(
    original: int, mscale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may reach 4,096 tokens: beyond 1,024 original positions the long factors hold for every length."""
    config = VllmConfig()
    monkeypatch.setattr(config, "model_config", SimpleNamespace(max_model_len=4096))
    parameters = {**LONGROPE, "original_max_position_embeddings": original, "long_mscale": mscale}
    with set_current_vllm_config(config):
        module = make_module({k: v for k, v in parameters.items() if v is not None})
    assert module.use_long_rope is (original == 1024)
    rope = rope_of_module(module)
    assert rope.inv_freq[0] == pytest.approx(1.0)
    assert (rope.inv_freq[1] < 0.6) is module.use_long_rope
    positions = torch.arange(2000, 4096, 131)
    key = torch.randn(len(positions), HEAD_SIZE, generator=torch.Generator().manual_seed(3))
    source, destination = (turn_by_vllm(module, where, key) for where in (positions, positions - 1980))
    error = (reference.rotate(source, rope, -1980) - destination).norm(dim=-1) / destination.norm(dim=-1)
    assert error.max() <= 4e-4
    module.use_long_rope = torch.tensor(True)
    with pytest.raises(MoveRefused, match="longrope switches its frequencies"):
        rope_of_module(module)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_table_is_recognised(dtype: torch.dtype) -> None:
    for family in FAMILIES.values():
        rope_of_module(make_module(family, dtype=dtype))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope: dynamic NTK is not additive"),
        ({"rope_type": "dynamic", "alpha": 2.0}, "rope: dynamic NTK is not additive"),
        ({"rope_type": "bailing_mrope", "mrope_section": [8, 12, 12]}, "rope: this form of mrope is not supported"),
    ],
)
def test_refused_families(parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(MoveRefused) as refused:
        rope_of_module(make_module(parameters))
    assert refused.value.reason == reason


def test_an_unknown_class_is_refused() -> None:
    class SurpriseRotaryEmbedding(RotaryEmbedding):
        pass

    with pytest.raises(MoveRefused, match="rope: unknown class SurpriseRotaryEmbedding"):
        rope_of_module(SurpriseRotaryEmbedding(64, 64, 128, 10_000, True, torch.float32))


@pytest.mark.parametrize("row", [1, 2000, 4095])
def test_a_table_that_disagrees_with_its_parameters_is_refused(row: int) -> None:
    module = RotaryEmbedding(HEAD_SIZE, HEAD_SIZE, 4096, 10_000, True, torch.float32)
    module.cos_sin_cache[row:] *= 1.25
    with pytest.raises(MoveRefused, match="table is not what its parameters say"):
        rope_of_module(module)


class Attention(nn.Module):
    """As much of vLLM's `Attention` as the search for ropes looks at."""

    def __init__(self, layer_name: str, alibi_slopes: object = None) -> None:
        super().__init__()
        self.layer_name, self.head_size = layer_name, HEAD_SIZE
        self.impl = SimpleNamespace(alibi_slopes=alibi_slopes)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return q


class SelfAttention(nn.Module):
    def __init__(self, attn: Attention, rotary_emb: nn.Module | None, use_rope: bool = True) -> None:
        super().__init__()
        self.attn, self.rotary_emb, self.use_rope = attn, rotary_emb, use_rope

    def forward(self, positions: Any, q: Any, k: Any, v: Any) -> Any:
        q, k = self.rotary_emb(positions, q, k)  # type: ignore[misc]
        return self.attn(q, k, v)


class OptionalSelfAttention(SelfAttention):
    def forward(self, positions: Any, q: Any, k: Any, v: Any) -> Any:
        if self.use_rope:
            q, k = self.rotary_emb(positions, q, k)  # type: ignore[misc]
        k = k.view(-1, HEAD_SIZE)
        return self.attn(q, k, v)


class NormBehindRope(SelfAttention):
    def forward(self, positions: Any, q: Any, k: Any, v: Any) -> Any:
        q, k = self.rotary_emb(positions, q, k)  # type: ignore[misc]
        k = self.attn.norm(k)
        return self.attn(q, k, v)


class InPlaceBehindRope(SelfAttention):
    def forward(self, positions: Any, q: Any, k: Any, v: Any) -> Any:
        q, k = self.rotary_emb(positions, q, k)  # type: ignore[misc]
        torch.relu_(k)
        return self.attn(q, k, v)


class ShiftedPositions(SelfAttention):
    def forward(self, positions: Any, q: Any, k: Any, v: Any) -> Any:
        positions = positions + 2
        q, k = self.rotary_emb(positions, q, k)  # type: ignore[misc]
        return self.attn(q, k, v)


class SlidingOnly(SelfAttention):
    def forward(self, positions: Any, q: Any, k: Any, v: Any) -> Any:
        if self.use_rope or self.training:
            q, k = self.rotary_emb(positions, q, k)  # type: ignore[misc]
        return self.attn(q, k, v)


class NoRope(SelfAttention):
    def forward(self, positions: Any, q: Any, k: Any, v: Any) -> Any:
        return self.attn(q, k, v)


def make_model(*layers: nn.Module) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(layers)
    return model


def test_ropes_are_found_per_layer() -> None:
    """Two thetas and a layer without positions in one model; modules that vLLM shares are found for each layer."""
    local, global_ = make_module({"rope_theta": 10_000}), make_module({"rope_theta": 1_000_000})
    model = make_model(
        SelfAttention(Attention("layers.0.attn"), local),
        SelfAttention(Attention("layers.1.attn"), global_),
        SelfAttention(Attention("layers.2.attn"), local),
        OptionalSelfAttention(Attention("layers.3.attn"), global_),
        OptionalSelfAttention(Attention("layers.4.attn"), global_, use_rope=False),
    )
    ropes = ropes_of_model(model, [f"layers.{i}.attn" for i in range(5)])
    assert ropes["layers.0.attn"] == ropes["layers.2.attn"] == rope_of_module(local)
    assert ropes["layers.1.attn"] == ropes["layers.3.attn"] == rope_of_module(global_)
    assert ropes["layers.4.attn"] is None


@pytest.mark.parametrize(
    ("layer_class", "reason"),
    [
        (NormBehindRope, "changes its keys behind the rotary embedding"),
        (InPlaceBehindRope, "changes its keys behind the rotary embedding"),
        (ShiftedPositions, "under a condition or in another form"),
        (SlidingOnly, "under a condition or in another form"),
        (NoRope, "applies no rotary embedding"),
    ],
)
def test_a_forward_that_does_more_than_rotate_is_refused(layer_class: type[SelfAttention], reason: str) -> None:
    model = make_model(layer_class(Attention("layers.0.attn"), make_module({})))
    with pytest.raises(MoveRefused, match=rf"positions: {layer_class.__name__}.*{reason}"):
        ropes_of_model(model, ["layers.0.attn"])


def test_other_positions_are_refused() -> None:
    alibi = make_model(SelfAttention(Attention("a", alibi_slopes=torch.ones(4)), make_module({})))
    with pytest.raises(MoveRefused, match="positions: alibi"):
        ropes_of_model(alibi, ["a"])
    latent = make_model(SelfAttention(Attention("a"), make_module({})))
    latent.layers[0].attn.kv_lora_rank = 512
    with pytest.raises(MoveRefused, match="multi-head latent attention"):
        ropes_of_model(latent, ["a"])
    learned = make_model(SelfAttention(Attention("a"), make_module({})))
    learned.wpe = nn.Embedding(8, 8)
    with pytest.raises(MoveRefused, match=r"positions: learned position embeddings \(wpe\)"):
        ropes_of_model(learned, ["a"])
    with pytest.raises(MoveRefused, match="attention layer b is not among its modules"):
        ropes_of_model(make_model(SelfAttention(Attention("a"), make_module({}))), ["b"])
