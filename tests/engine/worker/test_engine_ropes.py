"""The keys of a drafter's layers are measured on the drafter, and what it may not turn refuses moves by its name.

What is built small for it has the heads that the model has, in size, and fewer of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import FalconConfig

from acmserve.engine.vllm.model.small_build import SmallBuild, small_build
from acmserve.engine.worker.engine_ropes import ropes_of_engine
from acmserve.engine.worker.model_verdict import measure_keys
from acmserve.engine.worker.rope_module import rope_of_module
from acmserve.errors import MoveRefused
from tests.support.engine.drafter_models import save_with_eagle_head

NAMES = ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallBuild]:
    model, speculative = save_with_eagle_head(tmp_path_factory.mktemp("eagle"))
    with small_build(str(model), speculative_config=speculative) as built:
        yield built


def test_the_layers_of_both_are_measured(build: SmallBuild) -> None:
    model: Any = build.model
    rope = rope_of_module(model.model.layers[0].self_attn.rotary_emb)
    assert measure_keys(build) == dict.fromkeys(NAMES, rope)


def test_without_its_drafter_a_layer_is_nobodys(build: SmallBuild) -> None:
    with pytest.raises(MoveRefused, match=r"layer model\.layers\.1\.self_attn\.attn was not called"):
        ropes_of_engine(build.model, None, NAMES, build.vllm_config)


def test_a_drafter_with_positions_in_its_values_refuses_moves(build: SmallBuild) -> None:
    def add_position(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        states = kwargs["hidden_states"] * (1 + kwargs["positions"][:, None])
        return args, kwargs | {"hidden_states": states}

    head: Any = build.drafter
    handle = head.model.layers[0].self_attn.register_forward_pre_hook(add_position, with_kwargs=True)
    try:
        with pytest.raises(MoveRefused, match=r"^drafter: positions: values of model\.layers\.1"):
            measure_keys(build)
    finally:
        handle.remove()


def test_a_drafter_without_kv_of_its_own_has_the_models_rotation(
    build: SmallBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = build.vllm_config.compilation_config.static_forward_context[NAMES[1]]
    monkeypatch.setattr(layer, "kv_sharing_target_layer_name", NAMES[0], raising=False)
    ropes = measure_keys(build)
    assert ropes[NAMES[1]] == ropes[NAMES[0]]


def test_heads_that_have_no_half_are_fewer_all_the_same(tmp_path: Path) -> None:
    """71 heads of 64: built whole, doctor would take five gigabytes and ten times as long."""
    config = FalconConfig(num_hidden_layers=1, architectures=["FalconForCausalLM"])
    config.save_pretrained(tmp_path)
    with small_build(str(tmp_path)) as built:
        (layer,) = built.layers.values()
        assert (built.vllm_config.model_config.hf_config.hidden_size, layer.num_heads) == (1024, 16)
        assert (layer.head_size, layer.num_kv_heads) == (64, 1)
        assert next(iter(measure_keys(built).values())) is not None
