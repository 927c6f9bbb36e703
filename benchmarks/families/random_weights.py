"""A loader of vLLM that makes random weights for any class: `load_format="acmserve_random"`.

vLLM's own dummy weights are so small that attention sees next to nothing. These let each layer count. A recurrent state
decays slowly, so what is wrong in it shows long after: behind the tokens that are moved, too.

Knows no family.
"""

from __future__ import annotations

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from acmserve.engine.vllm.model.small_build import fill_random

LOAD_FORMAT = "acmserve_random"
DECAYS = {"A_log": -8.0, "A": -0.001, "dt_bias": -1.0}
"""Parameters of the decay of a state, and a value with which it lasts for hundreds of tokens."""


@register_model_loader(LOAD_FORMAT)
class RandomWeights(BaseModelLoader):
    """Fills parameters where other loaders read them."""

    def download_model(self, model_config: ModelConfig) -> None:
        """There is nothing to download."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Every parameter, the same ones at each start."""
        fill_random(model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                decay = DECAYS.get(name.rpartition(".")[2])
                if decay is not None:
                    parameter.fill_(decay)
