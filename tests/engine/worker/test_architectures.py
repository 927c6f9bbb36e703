"""The one-layer oracle beyond Llama: each architecture's moved KV is right, or it is refused by name, but never wrong.

What is said of a model without its weights, by `acmserve doctor`, is what the engine finds. Positions that are learned
are refused in tests/engine/test_refusals.py.

A layer-wise mixture (two thetas, sliding and full attention) cannot be an oracle, because moved KV is exact for one
layer only. The mixture's parts are tested one by one here, the choice of the rotation for each layer in
tests/kernels/test_rope_facts.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BloomConfig,
    DeepseekV2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen3Config,
)

from acmserve.engine.config import engine_config
from acmserve.engine.worker.model_verdict import judge_model
from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, start_engine
from tests.support.engine.latent import REFERENCE_BACKEND
from tests.support.engine.tiny_model import VOCAB_SIZE, save_random

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
TWO_THETAS = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": PLAIN}
DYNAMIC = {**PLAIN, "rope_type": "dynamic", "factor": 2.0}
LONGROPE = {
    **PLAIN,
    "rope_type": "longrope",
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + 0.4 * i for i in range(8)],
    "original_max_position_embeddings": 1024,
}


def gemma(kind: str) -> PretrainedConfig:
    return Gemma3TextConfig(
        **COMMON,
        head_dim=32,
        query_pre_attn_scalar=32,
        layer_types=[kind],
        sliding_window=256,
        rope_parameters=TWO_THETAS,
    )


MOVED = {
    "Qwen3: norms before the rotation": Qwen3Config(**COMMON, head_dim=32, rope_parameters=PLAIN),
    "Gemma 3: full attention, its own theta": gemma("full_attention"),
    "Phi-3: partial rotation, long-rope": Phi3Config(
        **COMMON, rope_parameters=LONGROPE, original_max_position_embeddings=1024
    ),
    "Mistral: full attention": MistralConfig(**COMMON, head_dim=32, sliding_window=None, rope_parameters=PLAIN),
    "dynamic NTK: the base is fixed at the start": LlamaConfig(**COMMON, head_dim=32, rope_parameters=DYNAMIC),
    "Mistral: a window in every layer": MistralConfig(**COMMON, head_dim=32, sliding_window=256, rope_parameters=PLAIN),
    "Bloom: no positions in the keys, a slope for each head": BloomConfig(
        vocab_size=VOCAB_SIZE, hidden_size=128, n_layer=1, n_head=4, seq_length=4096, dtype="float32"
    ),
}
CONTEXT = [*cut(HISTORY, 200, 520, MARKER), *NEW]


@pytest.mark.parametrize("name", MOVED)
def test_moved_kv_is_right(name: str, tmp_path: Path) -> None:
    path = save_random(MOVED[name], tmp_path / "model")
    assert judge_model(str(path), max_model_len=4096, **engine_config()).refusal is None
    with start_engine(path, plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as engine:
        engine.ask(HISTORY, "s", "reuse")
        moved = engine.ask(CONTEXT, "s", "reuse")
        assert moved.receipt is not None
        assert moved.receipt["moved_tokens"] > 300, moved.receipt
        assert moved.distance(engine.ask(CONTEXT, "t", "exact")) <= MAX_DIFFERENCE
        assert engine.ask(text(900, "other"), "u").distance(moved) > 10 * MAX_DIFFERENCE, "the model sees its input"


def test_latent_attention_is_refused_by_name(tmp_path: Path) -> None:
    """MLA on the CPU engine, which keeps no prefixes for it: the kernel's own tests stand for its layout."""
    config = DeepseekV2Config(
        **{**COMMON, "num_key_value_heads": 4},
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        first_k_dense_replace=1,
        rope_parameters=PLAIN,
    )
    path = save_random(config, tmp_path / "model")
    with start_engine(path, plugin={}, own_process=False, **TINY_SETTINGS | REFERENCE_BACKEND) as engine:
        engine.ask(HISTORY, "s", "reuse")
        answer = engine.ask(CONTEXT, "s", "reuse")
        assert answer.receipt is not None
        assert answer.receipt["moved_tokens"] == 0
        assert "prefix caching" in answer.receipt["fallback_reason"]
        assert answer.distance(engine.ask(CONTEXT, "t", "exact")) <= MAX_DIFFERENCE
