"""Layers with a sliding window: their KV moves, under vLLM's hybrid KV cache manager and without it.

Without it all layers keep all KV. With it each kind of layer has blocks of its own, and a window keeps what it reads.

The deep oracle: the output projection of all layers but one is zero. So the input of each layer depends on its token
alone, and moved KV is exact in a model of any depth and mix. Only the one layer's attention shows in the logits.

    layers      window   window   window   full          Gemma 3, two rotary bases
    attends        x        .        .       .           then another one
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig, Gemma4TextConfig, GptOssConfig, PretrainedConfig

from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.leaps.runs import Jump
from acmserve.engine.worker import engine_ropes
from acmserve.engine.worker.copies import KVCopy
from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.engine.worker.test_architectures import COMMON, TWO_THETAS
from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, start_engine
from tests.support.engine.tiny_model import save_random

CONTEXT = [*cut(HISTORY, 200, 520, MARKER), *NEW]
SETTINGS: dict[str, Any] = {**TINY_SETTINGS, "block_size": 32, "disable_hybrid_kv_cache_manager": True}
WINDOW, FULL = "sliding_attention", "full_attention"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}


def gemma3() -> PretrainedConfig:
    return Gemma3TextConfig(
        **(COMMON | {"num_hidden_layers": 4}),
        head_dim=32,
        query_pre_attn_scalar=32,
        layer_types=[WINDOW] * 3 + [FULL],
        sliding_window=256,
        rope_parameters=TWO_THETAS,
    )


def gpt_oss() -> PretrainedConfig:
    return GptOssConfig(
        **(COMMON | {"num_hidden_layers": 2, "intermediate_size": 64}),
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=128,
        layer_types=[WINDOW, FULL],
        rope_parameters=YARN,
    )


def save_attending(config: PretrainedConfig, folder: Path, layer: int) -> Path:
    """A random model in which only this layer's attention counts."""
    path = save_random(config, folder / "model")
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    silenced = [name for name in tensors if name.endswith("o_proj.weight") and f"layers.{layer}." not in name]
    assert len(silenced) == config.num_hidden_layers - 1
    for name in silenced:
        tensors[name].zero_()
    save_file(tensors, weights, metadata={"format": "pt"})
    return path


ATTENDING = {"Gemma 3, full": (gemma3(), 3), "gpt-oss, window": (gpt_oss(), 0)}
"""A layer of each kind, and both models. `make windows` runs the other two, too."""
if "ACMSERVE_WINDOWS" in os.environ:
    ATTENDING |= {"Gemma 3, window": (gemma3(), 0), "gpt-oss, full": (gpt_oss(), 1)}


@pytest.mark.parametrize(("config", "layer"), ATTENDING.values(), ids=ATTENDING)
def test_moved_kv_is_right(config: PretrainedConfig, layer: int, tmp_path: Path) -> None:
    path = save_attending(config, tmp_path, layer)
    with start_engine(path, plugin={}, own_process=False, **SETTINGS) as engine:
        engine.ask(HISTORY, "s", "reuse")
        moved = engine.ask(CONTEXT, "s", "reuse")
        assert moved.receipt is not None
        assert moved.receipt["moved_tokens"] > 300, moved.receipt
        assert moved.distance(engine.ask(CONTEXT, "t", "exact")) <= MAX_DIFFERENCE
        assert engine.ask([*text(60, "other"), *CONTEXT[-60:]], "u").distance(moved) > 10 * MAX_DIFFERENCE


def test_with_one_rotation_for_all_layers_the_oracle_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the full layer's keys, turned by the rotary base of the window layers."""
    measure = engine_ropes.ropes_of_model

    def take_the_first(model: Any, names: list[str], forward: Any) -> Any:
        return dict.fromkeys(names, measure(model, names, forward)[names[0]])

    monkeypatch.setattr(engine_ropes, "ropes_of_model", take_the_first)
    path = save_attending(gemma3(), tmp_path, 3)
    with start_engine(path, plugin={}, own_process=False, **SETTINGS) as engine:
        engine.ask(HISTORY, "s", "reuse")
        assert engine.ask(CONTEXT, "s", "reuse").distance(engine.ask(CONTEXT, "t", "exact")) > 10 * MAX_DIFFERENCE


def gemma4() -> PretrainedConfig:
    """Two head sizes, so that blocks of the two kinds have other numbers of tokens."""
    return Gemma4TextConfig(
        **(COMMON | {"num_hidden_layers": 4}),
        head_dim=32,
        global_head_dim=64,
        layer_types=[WINDOW] * 3 + [FULL],
        sliding_window=128,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
    )


@dataclass(frozen=True)
class Case:
    """A model of which one layer attends, under the hybrid manager. `retention` is vLLM's, in tokens, 0 by default."""

    name: str
    config: PretrainedConfig
    layer: int
    retention: int = 0


SUITE = Case("Gemma 3, window", gemma3(), 0)
MATRIX = (
    SUITE,
    Case("Gemma 3, window, all kept", gemma3(), 2, 32),
    Case("Gemma 3, full", gemma3(), 3),
    Case("gpt-oss, window", gpt_oss(), 0),
    Case("gpt-oss, full, all kept", gpt_oss(), 1, 32),
    Case("Gemma 4, window, all kept", gemma4(), 0, 64),
    Case("Gemma 4, full", gemma4(), 3),
)
"""`make windows` runs all of it, the suite the first."""
CASES = MATRIX if "ACMSERVE_WINDOWS" in os.environ else (SUITE,)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_moved_kv_is_right_under_the_hybrid_manager(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group's KV is copied into its own blocks. The control leaves out the group that attends."""
    path = save_attending(case.config, tmp_path, case.layer)
    settings = {**SETTINGS, "disable_hybrid_kv_cache_manager": False}
    settings |= {"prefix_cache_retention_interval": case.retention}
    copies: list[KVCopy] = []
    plan_copies, attends = jumping.plan_copies, [case.config.layer_types[case.layer] == FULL]

    def watch(jump: Jump, *args: Any) -> list[KVCopy]:
        copies[:] = plan_copies(jump, *args)
        full = {read.group.index for read in jump.reads if read.group.is_full}
        return [copy for copy in copies if not attends or (copy.group in full) != attends[0]]

    monkeypatch.setattr(jumping, "plan_copies", watch)
    with start_engine(path, plugin={}, own_process=False, **settings) as engine:
        engine.ask(HISTORY, "control", "reuse", salt="control")
        control = engine.ask(CONTEXT, "control", "reuse", salt="control")
        attends.clear()
        engine.ask(HISTORY, "s", "reuse")
        moved = engine.ask(CONTEXT, "s", "reuse")
        exact = engine.ask(CONTEXT, "t", "exact")
        assert moved.receipt is not None
        assert moved.receipt["moved_tokens"] > 250, moved.receipt
        assert moved.receipt["kept_tokens"] == (200 if case.retention else 0), moved.receipt
        assert moved.receipt["fallback_reason"] is None, "the window in front of the prompt's end is kept by default"
        assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
        assert control.distance(exact) > 10 * MAX_DIFFERENCE
        num_copied = {copy.group: copy.num_tokens for copy in copies}
        assert set(num_copied.values()) == {moved.receipt["moved_tokens"], case.config.sliding_window - 1}
