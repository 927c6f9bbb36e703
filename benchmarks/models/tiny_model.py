"""Random tiny models with the tokenizer of the bundled SmolLM2, for benchmarks that count tokens.

    llama        one layer of full attention
    windows      three layers with a window of 128 tokens, as gpt-oss has them, and one of full attention
    recurrent    three gated delta nets and one layer of full attention, as Qwen3-Next, in bfloat16

How many tokens a prompt has, and which of them are computed, does not depend on the weights. With these models, two
hundred turns take seconds instead of an hour. Not for anything that is timed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acmserve.models.smollm2 import prepare

if TYPE_CHECKING:
    from transformers import PretrainedConfig


LLAMA, WINDOWED, RECURRENT = "llama", "windows", "recurrent"
_PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}


def write_tiny_model(folder: Path, max_model_len: int, kind: str = LLAMA) -> Path:
    """Save the model in `folder` and return it."""
    import torch
    from transformers import AutoModelForCausalLM

    bundled = prepare()
    torch.manual_seed(7)
    shape = {
        "vocab_size": json.loads((bundled / "config.json").read_text(encoding="utf-8"))["vocab_size"],
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1 if kind == LLAMA else 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64 if kind == RECURRENT else 32,
        "max_position_embeddings": max_model_len,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        # In bfloat16, vLLM's CPU build makes NaN of logits whose weights are those of the embeddings.
        "tie_word_embeddings": kind != RECURRENT,
        "dtype": "bfloat16" if kind == RECURRENT else "float32",
    }
    config = _CONFIGS[kind](shape)
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape["dtype"])).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (bundled / name).exists():
            shutil.copy(bundled / name, folder / name)
    return folder


def _llama(shape: dict[str, Any]) -> PretrainedConfig:
    from transformers import LlamaConfig

    return LlamaConfig(**shape)


def _windows(shape: dict[str, Any]) -> PretrainedConfig:
    from transformers import Gemma3TextConfig

    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    ropes = {"full_attention": _PLAIN, "sliding_attention": _PLAIN}
    return Gemma3TextConfig(**shape, layer_types=kinds, sliding_window=128, rope_parameters=ropes)


def _recurrent(shape: dict[str, Any]) -> PretrainedConfig:
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig(
        **shape,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        rope_parameters={**_PLAIN, "partial_rotary_factor": 0.25},
    )


_CONFIGS = {LLAMA: _llama, WINDOWED: _windows, RECURRENT: _recurrent}
