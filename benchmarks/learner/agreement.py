"""Whether a served model says what its weights say: sampled tokens of a record, beside transformers in float32.

A server that runs the weights in another type, or moves their KV, may answer otherwise than the model that was trained.
Every sampled token of a greedy session has to be the likeliest one behind the prompt that was served.

Decision: two sums of float32 in another order may change places. So a token agrees whose logit is within `TIE` of the
largest one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from acmserve.training.rollout import Rollout

TIE = 0.01


@dataclass(frozen=True, slots=True)
class TokenAgreement:
    """Tokens that were sampled, and how many of them another token beats."""

    num_tokens: int
    num_other: int


def load_float32(folder: Path) -> Any:
    """The model of a folder, as it is trained and as it is compared."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.no_grad()
def compare_tokens(model: Any, rollout: Rollout) -> TokenAgreement:
    """Every sampled token of a rollout, beside the largest logit of the model."""
    num_tokens = num_other = 0
    for completion in rollout.completions.values():
        ids = torch.from_numpy(rollout.sequence_ids(completion.number)).long()
        sampled = ids[completion.prompt_tokens :]
        hidden = model.model(input_ids=ids[None, :-1], use_cache=False).last_hidden_state[0]
        logits = model.lm_head(hidden[completion.prompt_tokens - 1 :])
        behind = logits.amax(-1) - logits.gather(-1, sampled[:, None]).squeeze(-1)
        num_tokens += len(sampled)
        num_other += int((behind > TIE).sum())
    return TokenAgreement(num_tokens, num_other)
