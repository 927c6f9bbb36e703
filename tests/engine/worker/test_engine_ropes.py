"""The keys of a drafter's layers are measured on the drafter, and what it may not turn refuses moves by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.model_loader.utils import initialize_model

from acmserve.engine.vllm.small_build import SmallBuild, small_build
from acmserve.engine.worker.engine_ropes import ropes_of_engine
from acmserve.engine.worker.rope_module import rope_of_module
from acmserve.errors import MoveRefused
from tests.support.engine.drafter_models import save_with_eagle_head

NAMES = ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallBuild]:
    model, speculative = save_with_eagle_head(tmp_path_factory.mktemp("eagle"))
    with small_build(str(model), speculative_config=speculative) as built:
        yield built


@pytest.fixture(scope="module")
def head(build: SmallBuild) -> nn.Module:
    """vLLM's class for EAGLE heads, with random weights."""
    config: Any = build.vllm_config
    found: nn.Module = initialize_model(config, model_config=config.speculative_config.draft_model_config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
    return found.eval()


def test_the_layers_of_both_are_measured(build: SmallBuild, head: nn.Module) -> None:
    layer: Any = build.model
    rope = rope_of_module(layer.model.layers[0].self_attn.rotary_emb)
    assert ropes_of_engine(build.model, head, NAMES, build.vllm_config) == dict.fromkeys(NAMES, rope)


def test_without_its_drafter_a_layer_is_nobodys(build: SmallBuild, head: nn.Module) -> None:
    assert head is not None
    with pytest.raises(MoveRefused, match=r"layer model\.layers\.1\.self_attn\.attn was not called"):
        ropes_of_engine(build.model, None, NAMES, build.vllm_config)


def test_a_drafter_with_positions_in_its_values_refuses_moves(build: SmallBuild, head: nn.Module) -> None:
    def add_position(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        states = kwargs["hidden_states"] * (1 + kwargs["positions"][:, None])
        return args, kwargs | {"hidden_states": states}

    module: Any = head
    handle = module.model.layers[0].self_attn.register_forward_pre_hook(add_position, with_kwargs=True)
    try:
        with pytest.raises(MoveRefused, match=r"^drafter: positions: values of model\.layers\.1"):
            ropes_of_engine(build.model, head, NAMES, build.vllm_config)
    finally:
        handle.remove()
