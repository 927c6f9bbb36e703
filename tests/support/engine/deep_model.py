"""A saved model of one layer becomes one of three that answers as before: the deep oracle.

    embedding  ->  silent  ->  the layer  ->  silent  ->  logits

Silent layers add nothing to what passes them. So the input of each layer depends on its token alone, or on the one
layer's attention, and moved KV is exact at any depth. Silent layers have other keys and values than the layer.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

DEPTH, SPEAKING = 3, 1
_LAYER = "model.layers.0."
_SILENCED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def deepen(model: Path) -> None:
    """Rewrite weights and configuration of a model whose layer has an ordinary MLP."""
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    layer = {name.removeprefix(_LAYER): tensors.pop(name) for name in list(tensors) if name.startswith(_LAYER)}
    assert all(name in layer for name in _SILENCED)
    for index in range(DEPTH):
        for name, tensor in layer.items():
            own = tensor.clone() if index == SPEAKING else tensor.flip(0).contiguous()
            tensors[f"model.layers.{index}.{name}"] = own.zero_() if index != SPEAKING and name in _SILENCED else own
    save_file(tensors, weights, metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config |= {"num_hidden_layers": DEPTH}
    config |= {"first_k_dense_replace": DEPTH} if "first_k_dense_replace" in config else {}
    config |= {"layer_types": config["layer_types"] * DEPTH} if config.get("layer_types") else {}
    (model / "config.json").write_text(json.dumps(config))
