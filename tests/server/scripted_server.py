"""A server with the scripted model: a random one-layer Llama with SmolLM2's tokenizer and tools in its chat template.

One layer: moved KV is exact there, so `reuse` answers as `exact` does.
"""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acmserve.models.smollm2 import prepare

MODEL = "scripted"
MAX_MODEL_LEN = 32_768
TEMPLATE = Path(str(files("acmserve.models") / "chatml_tools.jinja"))
FLAGS = (
    *("--served-model-name", MODEL, "--max-model-len", str(MAX_MODEL_LEN), "--min-move-tokens", "16"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(TEMPLATE)),
    *("--logits-processors", "acmserve.bench.scripted_model:ScriptedModel"),
)


def write_model(folder: Path) -> Path:
    """Save the model with the tokenizer of the bundled one."""
    bundled = prepare()
    vocab_size = json.loads((bundled / "config.json").read_text())["vocab_size"]
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_MODEL_LEN,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (bundled / name).exists():
            shutil.copy(bundled / name, folder / name)
    return folder
