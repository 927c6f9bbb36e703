"""Random one-layer models: moved KV is exact for them, so `reuse` must equal `exact` to rounding.

The keys and values of the first layer depend on the token and its position only. A model that has no other layer is an
oracle for everything between the scheduler and the kernel. A wrong block, slot, position or angle shows in the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Glm4Config, LlamaConfig, PretrainedConfig

VOCAB_SIZE = 384


def save_random(config: PretrainedConfig, path: Path) -> Path:
    """Save a model of this configuration, with attention far from uniform and logits of a few nats."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, {"lm_head.weight": 0.2, "model.embed_tokens.weight": 1.0}.get(name, 0.3))
    model.save_pretrained(path)
    return path


@dataclass(frozen=True)
class TinyModel:
    """A rotary family. `partial` is the rotated share of the head. With two layers moved KV differs from exact KV."""

    name: str
    gptj: bool
    partial: float
    rope: dict[str, object] | None = None
    num_layers: int = 1

    def write(self, folder: Path) -> Path:
        """Save the model. Its logits are such that float32 resolves 1e-3 of them."""
        return save_random(self._config(), folder / self.name)

    def _config(self) -> PretrainedConfig:
        cls = Glm4Config if self.gptj else LlamaConfig
        rope: dict[str, object] = {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": self.partial,
        }
        return cls(
            vocab_size=VOCAB_SIZE,
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=self.num_layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=4096,
            rope_parameters={**rope, "partial_rotary_factor": self.partial, **(self.rope or {})},
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
            dtype="float32",
        )


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}

TWO_LAYERS = TinyModel("two-layers", gptj=False, partial=1.0, num_layers=2)

TINY_MODELS = (
    TinyModel("neox", gptj=False, partial=1.0),
    TinyModel("neox-partial", gptj=False, partial=0.5),
    TinyModel("gptj", gptj=True, partial=1.0),
    TinyModel("gptj-partial", gptj=True, partial=0.5),
    TinyModel("llama3", gptj=False, partial=1.0, rope=LLAMA3),
    TinyModel("yarn", gptj=False, partial=1.0, rope=YARN),
)
