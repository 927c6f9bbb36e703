"""One family of models: its recipe's settings, and a random model of its class that is small enough for any machine.

    recipe    flags that touch the KV cache     ->  Settings     (parsers, parallelism and memory are left out)
    model     vLLM's class and its fields       ->  config.json  (head sizes, rotations and kinds of layers are kept)

Knows no engine. The lists are in `dense.py`, `windows.py`, `latent.py` and `recurrent.py`. `registry.py` joins them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acmserve.bench.families.stand_ins import FP8_OPS

VOCAB_SIZE = 384
INDEX, POOLS = "index", "pools"
DEFAULT, SPEED = "default", "speed"
RECURRENT, CONVOLUTION = "recurrent", "short convolution"
"""Kinds of layers with a state, as rows name them."""
COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
PLAIN: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
WINDOW, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Settings:
    """Engine arguments of vLLM by the names of `EngineArgs`, and the flags of the recipe that they come from.

    `drafter` is the configuration of a draft model of its own, None where the model drafts for itself.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    flags: str = ""
    drafter: Mapping[str, Any] | None = None

    @property
    def rounds(self) -> bool:
        """Whether a key that is turned is rounded to 8 bits once more, so that it is not the computed one."""
        return str(self.arguments.get("kv_cache_dtype", "auto")).startswith("fp8")


@dataclass(frozen=True, slots=True)
class Family:
    """`number` and `name` are those of the table. `model` is the content of config.json.

    `default` are the settings that the recipe starts with, `speed` those that it offers on top: speculative decoding
    and an fp8 KV cache. None where it offers none. `stand_ins` name what the CPU build needs in place of the device's
    own (`stand_ins.py`). `cache` names the KV cache beside the attention's own, `INDEX` or `POOLS`. `reduced` says in
    which way the small model is less than its class.
    """

    number: int
    name: str
    recipe: str
    model: Mapping[str, Any]
    default: Settings = Settings()
    speed: Settings | None = None
    dtype: str = "float32"
    stand_ins: tuple[str, ...] = ()
    cache: str = ""
    reduced: str = ""

    @property
    def architecture(self) -> str:
        """vLLM's name of the class."""
        return str(self.model["architectures"][0])

    def settings(self, kind: str) -> Settings | None:
        """Those of `DEFAULT` or `SPEED`."""
        return self.default if kind == DEFAULT else self.speed

    def stand_ins_for(self, settings: Settings) -> tuple[str, ...]:
        """Those of the class, and those of the settings."""
        return (*self.stand_ins, *((FP8_OPS,) if settings.rounds else ()))

    def write(self, folder: Path, settings: Settings) -> Path:
        """Write config.json, and the drafter's into a folder of its own. Weights are made when the engine loads."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.model), encoding="utf-8")
        if settings.drafter is not None:
            (folder / "drafter").mkdir(exist_ok=True)
            (folder / "drafter" / "config.json").write_text(json.dumps(settings.drafter), encoding="utf-8")
        return folder


def model(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    """A config.json. A common field that is given as None is left out."""
    common = {name: value for name, value in COMMON.items() if name not in fields}
    given = {name: value for name, value in fields.items() if value is not None or name not in COMMON}
    return {**common, **given, "architectures": [architecture], "model_type": model_type}


def drafts(method: str, num_tokens: int, drafter: Mapping[str, Any] | None = None, **more: Any) -> Settings:
    """Speculative decoding, as the recipe starts it. A drafter of its own lies beside the model."""
    told = {"method": method, "num_speculative_tokens": num_tokens}
    flags = f"`--speculative-config` {method}, {num_tokens} tokens"
    flags += "".join(f", `--{name.replace('_', '-')} {value}`" for name, value in more.items())
    return Settings({"speculative_config": told, **more}, flags, drafter)


def cache_type(name: str = "fp8", **more: Any) -> Settings:
    """An fp8 KV cache."""
    flags = f"`--kv-cache-dtype {name}`" + "".join(f", `--{k.replace('_', '-')} {v}`" for k, v in more.items())
    return Settings({"kv_cache_dtype": name, **more}, flags)


EAGLE3_LAYERS = {"num_hidden_layers": 1, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
"""An EAGLE-3 head has one layer, and reads what goes into three layers of its model."""


def eagle_head() -> dict[str, Any]:
    """The configuration of an EAGLE-3 head of a Llama layer."""
    return model("LlamaForCausalLMEagle3", "llama", **EAGLE3_LAYERS, rope_parameters=dict(PLAIN))
