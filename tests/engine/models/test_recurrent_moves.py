"""States of gated delta nets move with the KV of the attention beside them, on the real engine.

The deep oracle: the output projection of all layers but one is zero, so moved states and keys are exact at any depth.
vLLM's gated delta nets take bfloat16 alone on a CPU. So the logits are made small, and with them what rounding does.

    served   [ ..... ][ piece ][ rest of a block )[ moved ............)[ .. ]
    edited   [ .. ][m][ computed .................)[ moved ............)[ computed ]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig, Qwen3NextConfig

from acmserve.engine.worker import state_mover
from tests.engine.models.test_hybrid_edits import qwen3_next
from tests.engine.test_oracle import HISTORY, MARKER, NEW
from tests.support.engine.edits import Tokens, cut
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.tiny_model import save_random

PIECE = (200, 520)
CONTEXT = [*cut(HISTORY, *PIECE, MARKER), *NEW]
SETTINGS: dict[str, Any] = {**TINY_SETTINGS, "dtype": "bfloat16"}
BLOCK = 128
SCALE = 1 / 128
MAX_DIFFERENCE = 1e-3


def small_states() -> PretrainedConfig:
    """States as large as the keys and values of 128 tokens."""
    config = qwen3_next()
    assert isinstance(config, Qwen3NextConfig)
    config.linear_num_value_heads = 2
    return config


def save_recurrent(config: PretrainedConfig, folder: Path, layer: int) -> Path:
    """A random model in which this layer alone mixes tokens, with slow gates and small logits."""
    path = save_random(config, folder / "model")
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "linear_attn.out_proj.weight")) and f"layers.{layer}." not in name:
            tensor.zero_()
        if name.endswith("A_log"):
            tensor.fill_(-6.0)
        if name.endswith("lm_head.weight"):
            tensor.mul_(SCALE)
    save_file(tensors, weights, metadata={"format": "pt"})
    return path


def ask(engine: Engine, tokens: Tokens, session: str, fidelity: str, foldable: Sequence[tuple[int, int]]) -> Answer:
    """An answer of one token in a session."""
    return engine.ask(tokens, session, fidelity, foldable=[list(piece) for piece in foldable])


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_moved_states_are_right(layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_engine(
        save_recurrent(small_states(), tmp_path, layer), plugin={}, own_process=False, **SETTINGS
    ) as engine:
        ask(engine, HISTORY, "s", "reuse", [PIECE])
        moved = ask(engine, CONTEXT, "s", "reuse", [])
        exact = ask(engine, CONTEXT, "t", "exact", [])
        print("RECEIPT", moved.receipt, moved.distance(exact))
        compose = state_mover.compose
        monkeypatch.setattr(state_mover, "compose", lambda there, before, after, parts: after)
        ask(engine, HISTORY, "u", "reuse", [PIECE])
        stale = ask(engine, CONTEXT, "u", "reuse", [])
        print("STALE", stale.receipt, stale.distance(exact))
        assert 0
