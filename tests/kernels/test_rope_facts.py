"""Rotations found in vLLM's own rotary modules, each family against vLLM's own rotation."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from acmserve.engine.worker.rope_module import rope_of_module
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
    "dynamic ntk, whose base vLLM fixes at the start": {"rope_type": "dynamic", "factor": 2.0},
    "dynamic ntk by alpha": {"rope_type": "dynamic", "alpha": 2.0},
    "bailing mrope": {"rope_type": "bailing_mrope", "mrope_section": [8, 12, 12]},
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
    """The key as vLLM caches it at these positions. M-RoPE gets the three equal positions of text."""
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
        exact, found = (rope_of_module(make_module(family, dtype=kind)) for kind in (torch.float32, dtype))
        assert (found.rot_dim, found.is_neox) == (exact.rot_dim, exact.is_neox)
        assert found.inv_freq == pytest.approx(exact.inv_freq, rel=0, abs=torch.finfo(dtype).eps / 2048)


class SurpriseRotaryEmbedding(RotaryEmbedding):
    """A class that nobody knows."""


def test_frequencies_of_an_unknown_class_are_read_off_its_table() -> None:
    """To the float32 number that the table was made of."""
    known = RotaryEmbedding(64, 48, 4096, 10_000, True, torch.float32)
    unknown = SurpriseRotaryEmbedding(64, 48, 4096, 10_000, True, torch.float32)
    unknown.cos_sin_cache *= 1.3  # a magnitude, as YaRN has one
    expected, found = rope_of_module(known), rope_of_module(unknown)
    assert (found.rot_dim, found.is_neox) == (48, True)
    assert torch.tensor(found.inv_freq) == pytest.approx(torch.tensor(expected.inv_freq), rel=1e-7, abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_table_of_an_unknown_class_is_read(dtype: torch.dtype) -> None:
    exact = rope_of_module(RotaryEmbedding(64, 64, 4096, 10_000, False, torch.float32))
    found = rope_of_module(SurpriseRotaryEmbedding(64, 64, 4096, 10_000, False, dtype))
    allowed = torch.finfo(dtype).eps / 4096
    assert torch.tensor(found.inv_freq) == pytest.approx(torch.tensor(exact.inv_freq), abs=allowed)


@pytest.mark.parametrize("row", [1, 2000, 4095])
def test_a_table_that_is_no_rotation_is_refused(row: int) -> None:
    module = SurpriseRotaryEmbedding(HEAD_SIZE, HEAD_SIZE, 4096, 10_000, True, torch.float32)
    module.cos_sin_cache[row:] *= 1.25
    with pytest.raises(MoveRefused, match="SurpriseRotaryEmbedding's table is no rotation"):
        rope_of_module(module)


def test_a_module_without_a_table_is_refused() -> None:
    module = SurpriseRotaryEmbedding(HEAD_SIZE, HEAD_SIZE, 4096, 10_000, True, torch.float32)
    module.cos_sin_cache = module.cos_sin_cache[None]
    with pytest.raises(MoveRefused, match="has no table of 64 columns"):
        rope_of_module(module)


@pytest.mark.parametrize("row", [1, 2000, 4095])
def test_a_table_that_disagrees_with_its_parameters_is_refused(row: int) -> None:
    module = RotaryEmbedding(HEAD_SIZE, HEAD_SIZE, 4096, 10_000, True, torch.float32)
    module.cos_sin_cache[row:] *= 1.25
    with pytest.raises(MoveRefused, match="table is no rotation by the frequencies of its parameters"):
        rope_of_module(module)
