"""A random LoRA adapter in peft's format, for the tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

RANK = 8


def write_adapter(model: Path, folder: Path, seed: int) -> Path:
    """An adapter for the keys, values and the head's input of every layer, as large as the weights themselves."""
    config = AutoConfig.from_pretrained(model)
    kv_size = config.num_key_value_heads * config.head_dim
    sizes = {"q_proj": config.num_attention_heads * config.head_dim, "k_proj": kv_size, "v_proj": kv_size}
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config.num_hidden_layers):
        for name, size in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, config.hidden_size, generator=random) * 0.3
            weights[f"{prefix}.lora_B.weight"] = torch.randn(size, RANK, generator=random) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    facts = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(sizes),
    }
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    return folder
