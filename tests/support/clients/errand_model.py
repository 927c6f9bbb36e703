"""A model that does errands (see `errand.py`): the engine forces what the prompt asks for, token by token.

Prompt, KV cache, chat template, parsers and receipts are the real ones. Loaded by
`--logits-processors tests.support.clients.errand_model:ErrandModel`.

Where the grammar of a JSON text refuses what is due, the model ends that text as soon as it may. Random weights would
write one string until the answer is full: 1,024 tokens for each update of a map.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig

from acmserve.bench.models.scripted_model import ScriptedModel
from tests.support.clients.errand import answer

CLOSING = ('"', "}", "]", ":", ",", "{", "[")
"""What brings a JSON text to its end, the first that is allowed. A quote ends a string, and begins one elsewhere."""


class ErrandModel(ScriptedModel):
    """Reads the whole prompt once, when the first token is due."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._closing: list[int] = [self.end_token, *self._tokenizer.convert_tokens_to_ids(list(CLOSING))]
        self._newline: int = self._tokenizer.encode("\n", add_special_tokens=False)[0]

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
                # No JSON has these words outside of a string, or a line's end in one. Without a grammar both may come.
                is_json = torch.isneginf(logits[[tokens[0], self._newline]]).any()
                allowed = [one for one in self._closing if is_json and not torch.isneginf(logits[one])]
                if not allowed:
                    return logits
                token = allowed[0]
            forced = torch.full_like(logits, float("-inf"))
            forced[token] = 0.0
            return forced

        return force


class ErrandOrScript(ErrandModel):
    """Says what is written down for a request, and does the errands of all others."""

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        is_written = "script" in (params.extra_args or {})
        return (super(ErrandModel, self) if is_written else super()).new_req_logits_processor(params)
