"""A forward pass of the drafter's model (EAGLE, MTP, a draft model), with the keys and values that it would cache.

    tokens 1 .. n at positions p+1 .. p+n, and the same random states of the target model at each place
        drafter  ->  its attention layers' k, v recorded

Decision: it begins one position later than the model's own pass. MTP modules leave the token at position 0 out, so the
keys there are none that any rotation leads to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acmserve.engine.vllm.model.recorded_forward import RecordedForward


class DrafterForward(RecordedForward):
    """Runs the model of the engine's drafter. Call it with positions, of which each is one more in the drafter."""

    @property
    def num_positions(self) -> int:
        """Positions that a request may reach and that the drafter runs at, but for the first."""
        limit = self._vllm_config.speculative_config.draft_model_config.max_model_len
        return min(super().num_positions, int(limit)) - 1

    def _run(self, positions: Tensor) -> None:
        speculative = self._vllm_config.speculative_config
        config = speculative.draft_model_config
        device = next(self._model.parameters()).device
        where = (positions + 1).to(device)
        arguments: dict[str, Tensor | int | None] = {
            "input_ids": ((torch.arange(positions.numel()) * 31 + 7) % config.get_vocab_size()).to(device),
            "positions": where.expand(config.mrope_num_dims, -1) if config.uses_mrope else where,
            "inputs_embeds": None,
        }
        if speculative.use_eagle():
            generator = torch.Generator().manual_seed(1)
            states = torch.randn(positions.numel(), config.get_hidden_size(), generator=generator)
            arguments["hidden_states"] = states.to(device, self._vllm_config.model_config.dtype)
        self._model(**arguments)
        num_modules = getattr(config.hf_config, "num_nextn_predict_layers", 1) if speculative.method == "mtp" else 1
        for index in range(1, num_modules):  # an MTP module for each draft
            self._model(**arguments, spec_step_idx=index)
