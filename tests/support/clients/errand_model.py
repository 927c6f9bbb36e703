"""A model that does errands (see `errand.py`): the engine forces what the prompt asks for, token by token.

Prompt, KV cache, chat template, parsers and receipts are the real ones. Loaded by
`--logits-processors tests.support.clients.errand_model:ErrandModel`.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams

from acmserve.bench.models.scripted_model import ScriptedModel
from tests.support.clients.errand import answer


class ErrandModel(ScriptedModel):
    """Reads the whole prompt once, when the first token is due."""

    def answer(self, prompt: str) -> str:
        """What is said to a prompt."""
        return answer(prompt)

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        tokens: list[int] = []

        def force(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
            if not tokens:
                text = self._tokenizer.decode(prompt or [])
                tokens.extend([*self._tokenizer.encode(self.answer(text), add_special_tokens=False), self.end_token])
            token = tokens[min(len(output), len(tokens) - 1)]
            if torch.isneginf(logits[token]):
                return logits
            forced = torch.full_like(logits, float("-inf"))
            forced[token] = 0.0
            return forced

        return force


class ErrandOrScript(ErrandModel):
    """Says what is written down for a request, and does the errands of all others."""

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        is_written = "script" in (params.extra_args or {})
        return (super(ErrandModel, self) if is_written else super()).new_req_logits_processor(params)
