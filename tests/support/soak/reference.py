"""What an answer has to be: the same model in transformers, which has no cache, no blocks and no sessions."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.support.engine.edits import Tokens

MAX_DIFFERENCE = 1e-3
"""Of log-probabilities in float32: two implementations sum in other orders."""


class Reference:
    """A fresh computation of every answer."""

    def __init__(self, model: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.inference_mode()
    def difference(self, prompt: Tokens, answer: Tokens, listed: list[dict[int, float]]) -> float:
        """The largest difference of log-probability over all tokens that the engine listed at its steps."""
        ids = torch.tensor([[*prompt, *answer]])
        logits = self._model(ids, logits_to_keep=len(answer) + 1).logits[0, :-1].double()
        expected = torch.log_softmax(logits, dim=-1)
        return max(
            abs(float(expected[step, token]) - value)
            for step, logprobs in enumerate(listed)
            for token, value in logprobs.items()
        )
