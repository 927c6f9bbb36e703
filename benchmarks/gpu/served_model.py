"""The models that the engines of the suite serve: a config.json of our own, and random weights, made at the load.

    llama-8b    the shape of Llama 3.1 8B
    small       the same class with four layers, in bfloat16, for what is checked and not timed
    tiny        the same class, four small layers, for a CPU

Nothing is downloaded. Prompts are token ids, so there is no tokenizer. vLLM's own dummy weights would not do. They are
so small that attention adds next to nothing, and a gate of answers would see no move (`families/random_weights.py`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tokens = tuple[int, ...]
LOADER, LOAD_FORMAT = "acmserve.bench.families.random_weights", "acmserve_random"
"""The module whose import makes the load format known to vLLM. Here it is not imported: it may ask the card."""
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_SPECIAL = 256


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`config` is the content of config.json. `num_bytes` is the size of a number in the weights and in the KV."""

    name: str
    config: Mapping[str, Any]
    num_bytes: int

    def write(self, folder: Path) -> Path:
        """The folder that vLLM is given."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2), encoding="utf-8")
        return folder

    @property
    def num_parameters(self) -> int:
        """Of all layers, norms, embeddings and the head."""
        told = self.config
        hidden, heads, kv_heads = (told[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
        attention = hidden * told["head_dim"] * 2 * (heads + kv_heads)
        layer = attention + 3 * hidden * told["intermediate_size"] + 2 * hidden
        return int(told["num_hidden_layers"] * layer + 2 * told["vocab_size"] * hidden + hidden)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self.num_parameters * self.num_bytes

    def kv_bytes(self, kv_type: str) -> int:
        """KV of one token in all layers. `kv_type` is vLLM's `kv_cache_dtype`."""
        num_bytes = 1 if kv_type.startswith("fp8") else self.num_bytes
        numbers = 2 * self.config["num_hidden_layers"] * self.config["num_key_value_heads"] * self.config["head_dim"]
        return int(numbers * num_bytes)

    def draw_tokens(self, num_tokens: int, *seed: object) -> Tokens:
        """Random tokens, always the same of one seed, and none of a tokenizer's special ones."""
        return tuple(random.Random(" ".join(map(str, seed))).choices(self._ordinary, k=num_tokens))

    @property
    def _ordinary(self) -> range:
        return range(_SPECIAL, self.config["vocab_size"] - _SPECIAL)


def _llama(**fields: Any) -> dict[str, Any]:
    """In the words of the published file, which every version of transformers reads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": dict(_LLAMA3),
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        **fields,
    }


LLAMA_8B = ServedModel(
    "llama-8b",
    _llama(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        bos_token_id=128_000,
        eos_token_id=128_001,
        torch_dtype="bfloat16",
    ),
    num_bytes=2,
)
SMALL = ServedModel(
    "small",
    {
        **LLAMA_8B.config,
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
    num_bytes=2,
)
TINY = ServedModel(
    "tiny",
    _llama(
        vocab_size=4096,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="float32",
    ),
    num_bytes=4,
)
