"""A server with the scripted model: a random one-layer Llama with SmolLM2's tokenizer and tools in its chat template.

One layer: moved KV is exact there, so `reuse` answers as `exact` does.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from acmserve.bench.models.tiny_model import write_tiny_model

MODEL = "scripted"
ALIAS = "scripted-small"
MAX_MODEL_LEN = 32_768
TEMPLATE = Path(str(files("acmserve.models") / "chatml_tools.jinja"))
FLAGS = (
    *("--model-alias", f"{ALIAS}={MODEL}"),
    *("--served-model-name", MODEL, "--max-model-len", str(MAX_MODEL_LEN), "--min-move-tokens", "16"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(TEMPLATE)),
    *("--logits-processors", "acmserve.bench.models.scripted_model:ScriptedModel"),
    *("--precompute", "off"),
)
"""Precompute is off: what is ready when a turn comes depends on the clock, and these servers' tests count tokens.

A test of precompute asks for it. The bundled model's server has nothing set (`precompute/test_default.py`).
"""


def write_model(folder: Path) -> Path:
    """Save the model with the tokenizer of the bundled one."""
    return write_tiny_model(folder, MAX_MODEL_LEN)
