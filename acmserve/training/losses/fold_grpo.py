"""FoldGRPO, from *Scaling Long-Horizon LLM Agent via Context-Folding* (arXiv 2510.11967): a ratio for each token.

    r = exp(log_prob - old_log_prob)      loss = -sum(min(r A, clip(r) A)) / number of sampled tokens

The advantage is one of a token, since a process reward is one of a turn. Every token of the batch has the same weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acmserve.errors import InvalidRequest
from acmserve.training.losses.gspo import MAX_LOG_RATIO
from acmserve.training.losses.log_probs import log_ratios

TOKEN_CLIP_LOW, TOKEN_CLIP_HIGH = 0.2, 0.28
"""Those of Section 3.2 of the paper, a thousand times those of a ratio of sequences."""


def fold_grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    loss_mask: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = TOKEN_CLIP_LOW,
    clip_high: float = TOKEN_CLIP_HIGH,
) -> Tensor:
    """The loss of a batch, a scalar. All four are `[batch, length]`. Without a trained token it is 0."""
    differences = log_ratios(log_probs, old_log_probs, loss_mask)
    if advantages.shape != differences.shape:
        raise InvalidRequest("advantages", f"have shape {tuple(advantages.shape)}, not {tuple(differences.shape)}")
    is_set = loss_mask.bool()
    chosen = torch.where(is_set, advantages.to(differences.dtype), torch.zeros_like(differences))
    ratios = differences.clamp(max=MAX_LOG_RATIO).exp()
    objective = torch.min(ratios * chosen, ratios.clamp(1 - clip_low, 1 + clip_high) * chosen)
    return -objective.sum() / is_set.sum().clamp(min=1)
