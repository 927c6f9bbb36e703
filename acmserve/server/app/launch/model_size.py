"""What a model's `config.json` already refuses: a window longer than the model's, and a KV cache too small for it.

    --max-model-len        beside max_position_embeddings                            vLLM's own rule
    KV of one full window  layers x 2 x KV heads x head size x bytes of a number     beside the memory that is given

Decision: only what is certain is refused. So models with full attention and static positions alone are looked at, and
the smallest number of bytes is assumed. Any flag that could change the model ends the look. vLLM judges everything else
when it starts. It knows a folder and numbers, and imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.errors import AcmError

_FULL_ATTENTION = frozenset({"llama", "qwen2", "qwen3"})
_OTHER_LENGTHS = frozenset(
    {
        *("n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions"),
        *("max_sequence_length", "max_seq_length", "seq_len", "text_config", "rope_scaling", "quantization_config"),
        *("sliding_window", "use_sliding_window", "layer_types", "kv_lora_rank"),
    }
)
"""Keys of a configuration by which a window or a KV cache may be other than it looks."""
_BYTES = {"float32": 4, "float": 4}
_SMALLEST_BYTES = 2
_GIB = 2**30
_CPU_KV_GIB = 4
_NUMBER = re.compile(r"(\d+)([kKmMgGtT]?)")
_FACTORS = {letter: 1000**power for power, letter in enumerate("kmgt", 1)} | {
    letter: 1024**power for power, letter in enumerate("KMGT", 1)
}


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model with full attention and static positions. `window` is the longest that it was made for."""

    window: int
    num_layers: int
    num_kv_heads: int
    head_size: int

    def kv_bytes(self, num_tokens: int, dtype: str | None) -> int:
        """The least that the KV of so many tokens takes."""
        numbers = num_tokens * self.num_layers * 2 * self.num_kv_heads * self.head_size
        return numbers * _BYTES.get(dtype or "", _SMALLEST_BYTES)


def read_plain_model(folder: Path) -> PlainModel | None:
    """What a model's folder says of its size. None where it is no model whose size is this plain."""
    config = _object(folder / "config.json")
    rope = config.get("rope_parameters") or {}
    if (
        config.get("model_type") not in _FULL_ATTENTION
        or any(config.get(name) for name in _OTHER_LENGTHS)
        or not isinstance(rope, Mapping)
        or rope.get("rope_type", "default") != "default"
    ):
        return None
    heads = config.get("num_attention_heads")
    numbers = [
        config.get("max_position_embeddings"),
        config.get("num_hidden_layers"),
        config.get("num_key_value_heads", heads),
        config.get("head_dim") or (config.get("hidden_size") or 0) // (heads or 1),
    ]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return None
    return PlainModel(*numbers)


def check_size(model: PlainModel, max_model_len: int | None, dtype: str | None, kv_memory: int | None) -> None:
    """Raise AcmError for a window that the model does not have, or whose KV has no room. None: not given."""
    if max_model_len is not None and max_model_len > model.window:
        raise AcmError(
            f"--max-model-len {max_model_len} is more than the {model.window} tokens that the model was made for; "
            f"give at most {model.window}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        )
    num_tokens = model.window if max_model_len is None else max_model_len
    needed = model.kv_bytes(num_tokens, dtype)
    if kv_memory is not None and needed > kv_memory:
        fitting = num_tokens * kv_memory // needed
        raise AcmError(
            f"the KV cache of {_size(kv_memory)} cannot hold one request of {num_tokens} tokens, which takes "
            f"{_size(needed)}; give it more with --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE, "
            f"or set --max-model-len below {fitting}"
        )


def check_memory(kv_memory: int) -> None:
    """Raise AcmError for a KV cache on the CPU that is larger than the machine's memory."""
    total = _total_memory()
    if kv_memory > total:
        raise AcmError(
            f"the KV cache of {_size(kv_memory)} is larger than this machine's memory of {_size(total)}; "
            "give it less with --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE"
        )


def default_cpu_kv_gib() -> int:
    """What the KV cache gets on a CPU where nobody says it: at most a quarter of the memory."""
    return max(1, min(_CPU_KV_GIB, _total_memory() // _GIB // 4))


def whole_number(text: str | None) -> int | None:
    """A number as vLLM's flags take it: `4096`, `4k` (thousand), `4K` (1,024). None for anything else."""
    found = _NUMBER.fullmatch(text or "")
    return None if found is None else int(found[1]) * _FACTORS.get(found[2], 1)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / 2**20:,.1f} MiB"


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _object(file: Path) -> Mapping[str, Any]:
    """A JSON object, or an empty one."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
