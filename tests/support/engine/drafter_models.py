"""Tiny models with drafters that foresee what the model will answer, as long as their KV is right.

    model          embedding  ->  norm  ->  the layer  ->  norm  ->  logits       at token t, position p
    EAGLE head     embedding of the token ahead  ->  the layer  ->  logits        at token t - 1, position p - 1
    MTP module     norm of that  ->  norm  ->  the layer  ->  norm  ->  logits    the same
    draft model    the model itself                                               at token t, position p

Each has the model's own layer, and leaves the model's state out. The rows of the embedding have norm 1 already, and a
last norm changes no order. So the drafter's KV at a position is the model's of the token behind, one position earlier.
Its drafts are the model's next tokens, but for the first token of a text, which it never sees.

With one layer moved KV is exact, the model's and the drafter's. So drafts are accepted as often behind a move as behind
a context that was computed. They are hardly ever accepted behind KV of the drafter that stayed where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.engine.tiny_model import TINY_MODELS

NUM_DRAFTS = 3
_LAYER = "model.layers.0."
_Drafting = tuple[Path, dict[str, Any]]


def save_with_eagle_head(folder: Path) -> _Drafting:
    """A Llama and its head. Returns the model's folder and vLLM's `speculative_config`."""
    model, tensors, config = _save_model(folder)
    head = _layer(tensors, "layers.0.")
    del head["layers.0.input_layernorm.weight"]
    head["fc.weight"] = torch.cat([*_one_and_nothing(tensors)], dim=1)
    _save(folder / "head", head, config | {"architectures": ["LlamaForCausalLM"]})
    return model, {"method": "eagle", "model": str(folder / "head"), "num_speculative_tokens": NUM_DRAFTS}


def save_with_mtp_module(folder: Path) -> _Drafting:
    """A MiMo, which is a Qwen2 with a module behind its layers."""
    model, tensors, config = _save_model(folder)
    for name in ("q", "k", "v"):
        rows = tensors[f"{_LAYER}self_attn.{name}_proj.weight"].shape[0]
        tensors[f"{_LAYER}self_attn.{name}_proj.bias"] = torch.zeros(rows)
    module = _layer(tensors, "model.mtp_layers.0.")
    one, nothing = _one_and_nothing(tensors)
    module["model.mtp_layers.0.input_proj.weight"] = torch.cat([nothing, one], dim=1)
    for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        module[f"model.mtp_layers.0.{norm}.weight"] = torch.ones(len(one))
    mimo = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    _save(model, tensors | module, config | mimo)
    return model, {"method": "mtp", "num_speculative_tokens": NUM_DRAFTS}


def save_with_draft_model(folder: Path) -> _Drafting:
    """A Llama, and the same once more."""
    model, tensors, config = _save_model(folder)
    _save(folder / "draft", tensors, config)
    return model, {"method": "draft_model", "model": str(folder / "draft"), "num_speculative_tokens": NUM_DRAFTS}


DRAFTERS: dict[str, Callable[[Path], _Drafting]] = {
    "eagle": save_with_eagle_head,
    "mtp": save_with_mtp_module,
    "draft_model": save_with_draft_model,
}


def _save_model(folder: Path) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
    """The model alone, with its tensors and its configuration."""
    model = TINY_MODELS[0].write(folder)
    tensors = load_file(model / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = embedding / embedding.square().mean(-1, keepdim=True).sqrt()
    config = json.loads((model / "config.json").read_text())
    _save(model, tensors, config)
    return model, tensors, config


def _layer(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.replace(_LAYER, prefix): tensor.clone() for name, tensor in tensors.items() if _LAYER in name}


def _one_and_nothing(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What lets the embedding pass, and what lets nothing of the model's state pass, `[hidden, hidden]` each."""
    size = tensors["model.norm.weight"].numel()
    return torch.eye(size), torch.zeros(size, size)


def _save(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
