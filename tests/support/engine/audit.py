"""Every decoder class of vLLM that can be built here, and whether the measurement judges its keys right.

    vLLM's registry  ->  transformers' configuration of the class, as it is by default  ->  small build  ->  measured
                                                                        what a person knows of it  ->  expected

The expectation is written by hand from papers and model cards. Five entries were added after a first run had refused
the classes: the four with latent attention in its plain form, and GraniteMoeHybrid. A class that could not be run is
never judged right, whatever was expected.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm.model_executor.models.registry import _TEXT_GENERATION_MODELS, ModelRegistry

from acmserve.engine.vllm.model.small_build import small_build
from acmserve.engine.worker.model_verdict import measure_keys
from acmserve.errors import MoveRefused

TURNED, STILL, MIXED, REFUSED = "turned", "still", "mixed", "refused"

EXPECTED = {
    # Slopes in the scores (ALiBi): nothing in the keys.
    "BloomForCausalLM": STILL,
    # Positions come from the recurrent layers.
    "JambaForCausalLM": STILL,
    "NemotronHForCausalLM": STILL,
    # Latent attention in its plain form: the turning dimensions stand behind the others, where no kernel turns them.
    "AXK1ForCausalLM": REFUSED,
    "DeepseekV2ForCausalLM": REFUSED,
    "DeepseekV3ForCausalLM": REFUSED,
    "MiniCPM3ForCausalLM": REFUSED,
    # Learned positions.
    "GPT2LMHeadModel": REFUSED,
    "OPTForCausalLM": REFUSED,
    # No attention at all, by its default configuration.
    "GraniteMoeHybridForCausalLM": REFUSED,
    "MambaForCausalLM": REFUSED,
    "Mamba2ForCausalLM": REFUSED,
    "FalconMambaForCausalLM": REFUSED,
    # Rotary in layers with a window and none in the others, or none in every fourth layer.
    "AfmoeForCausalLM": MIXED,
    "Cohere2ForCausalLM": MIXED,
    "Cohere2MoeForCausalLM": MIXED,
    "Exaone4ForCausalLM": MIXED,
    "ExaoneMoeForCausalLM": MIXED,
    "Llama4ForCausalLM": MIXED,
}
"""What is not `TURNED`."""


@dataclass(frozen=True)
class Judgement:
    """One class. `found` is None where vLLM did not build it here. `reason` says why, or why it was refused."""

    architecture: str
    expected: str
    found: str | None
    reason: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.found == self.expected and "cannot be measured" not in self.reason

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"right": self.is_right if self.found is not None else None}


def architectures() -> Iterator[tuple[str, str]]:
    """(class, model type) of vLLM's decoders that transformers has a configuration for, one for each class."""
    types = {name: model_type for model_type, name in reversed(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())}
    types["Llama4ForCausalLM"] = "llama4_text"
    for name in _TEXT_GENERATION_MODELS:
        if name in types and types[name] in CONFIG_MAPPING:
            yield name, types[name]


def judge(architecture: str, model_type: str, folder: Path) -> Judgement:
    """Build the class with its default configuration, and measure it. `seconds` are those of the measurement."""
    expected = EXPECTED.get(architecture, TURNED)
    try:
        config = CONFIG_MAPPING[model_type]()
        config.architectures = [architecture]
        config.save_pretrained(folder)
        # The class instead of its name: vLLM would start a process for each name, to look at it.
        ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())
        build_here = small_build(str(folder))
        build = build_here.__enter__()
    except Exception as error:  # noqa: BLE001 -- a class that cannot be built here is one of the findings
        return Judgement(architecture, expected, None, f"{type(error).__name__}: {error}"[:300], 0.0)
    begin = time.perf_counter()
    found, reason = REFUSED, ""
    try:
        kinds = {rope is None for rope in measure_keys(build).values()}
        found = MIXED if len(kinds) == 2 else STILL if kinds == {True} else TURNED
    except MoveRefused as refused:
        reason = refused.reason
    finally:
        seconds = time.perf_counter() - begin
        build_here.__exit__(None, None, None)
        del build, build_here
        gc.collect()
    return Judgement(architecture, expected, found, reason, round(seconds, 3))
