"""The model that a benchmark is told to use, as a folder: a bundled one by its name, one trained here, or your own."""

from __future__ import annotations

from pathlib import Path

from acmserve.bench.harness.run_log import progress
from acmserve.errors import AcmError

LEARNER = "learner"
"""The name of the model that `make train` has trained."""
_FLOAT_BYTES = 4


def prepare_model(name: str) -> Path:
    """The folder of `smollm2` or `gemma3`, prepared first where needed, of `LEARNER`, or the folder `name`.

    Raises AcmError for a folder that holds no model.
    """
    from acmserve.models import gemma3, smollm2

    bundled = {"smollm2": smollm2.prepare, "gemma3": gemma3.prepare}
    if name in bundled:
        return bundled[name](progress=progress)
    if name == LEARNER:
        return _learned()
    folder = Path(name)
    if not (folder / "config.json").is_file():
        raise AcmError(f"{name} is not a Hugging Face folder (no config.json in it); name one, or smollm2 or gemma3")
    return folder.absolute()


def _learned() -> Path:
    from acmserve.bench.learner.work_folder import default_work

    folder = default_work() / "right"
    if not (folder / "config.json").is_file():
        raise AcmError(f"{LEARNER} is not trained here; `acmserve bench learner --train-only` takes twenty minutes")
    return folder


def kv_bytes(folder: Path) -> int:
    """Bytes of keys and values in float32 that one token takes in all layers."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * size * _FLOAT_BYTES)
