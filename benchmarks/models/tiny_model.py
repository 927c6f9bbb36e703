"""A random tiny model of one layer with the tokenizer of the bundled SmolLM2, for benchmarks that count tokens.

How many tokens a prompt has, and which of them are computed, does not depend on the weights; with this one, two hundred
turns take seconds instead of an hour. Not for anything that is timed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from acmserve.models.smollm2 import prepare


def write_tiny_model(folder: Path, max_model_len: int) -> Path:
    """Save the model in `folder` and return it."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    bundled = prepare()
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=json.loads((bundled / "config.json").read_text(encoding="utf-8"))["vocab_size"],
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_model_len,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        dtype="float32",
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (bundled / name).exists():
            shutil.copy(bundled / name, folder / name)
    return folder
