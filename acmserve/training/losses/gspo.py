"""GSPO as *Sculptor* (arXiv 2508.04664) uses it: Equations 1 and 2, with the two bounds of its Table 4.

    s = exp(mean over the sampled tokens of log_prob - old_log_prob)      loss = -mean(min(s A, clip(s) A))

One ratio belongs to a whole sequence. `rollouts` makes all samples of a rollout one sequence, as the paper has it. A
trajectory is cut into samples where its context was edited, and is still one trajectory. Without `rollouts` each row is
a sequence. TRL computes the same with `importance_sampling_level="sequence"` and `loss_type="grpo"`.

Decision: the exponent is bounded, so that no ratio is infinite. A bounded one gives no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acmserve.errors import InvalidRequest
from acmserve.training.losses.log_probs import log_ratios

CLIP_LOW, CLIP_HIGH = 0.0003, 0.0004
MAX_LOG_RATIO = 10.0


def gspo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    loss_mask: Tensor,
    advantages: Tensor,
    *,
    rollouts: Tensor | None = None,
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
) -> Tensor:
    """The loss of a batch, a scalar. The first three are `[batch, length]`, `advantages` and `rollouts` are `[batch]`.

    Rows of one rollout have one advantage. A row, or a rollout, without a trained token counts as 0.
    """
    ratios, sizes, groups = _sequence_log_ratios(log_probs, old_log_probs, loss_mask, rollouts)
    if advantages.shape != log_probs.shape[:1]:
        raise InvalidRequest("advantages", f"have shape {tuple(advantages.shape)} for {log_probs.shape[0]} rows")
    chosen = ratios.new_zeros(ratios.shape).index_copy(0, groups, advantages.to(ratios.dtype))
    if not torch.equal(chosen[groups], advantages.to(ratios.dtype)):
        raise InvalidRequest("advantages", "differ between the samples of a rollout")
    weights = ratios.clamp(max=MAX_LOG_RATIO).exp()
    clipped = weights.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.min(weights * chosen, clipped * chosen)
    return -torch.where(sizes > 0, objective, torch.zeros_like(objective)).mean()


def sequence_ratios(
    log_probs: Tensor, old_log_probs: Tensor, loss_mask: Tensor, *, rollouts: Tensor | None = None
) -> Tensor:
    """`s` of Equation 2 for each row. Rows of one rollout share it."""
    ratios, _, groups = _sequence_log_ratios(log_probs, old_log_probs, loss_mask, rollouts)
    return ratios.clamp(max=MAX_LOG_RATIO).exp()[groups]


def _sequence_log_ratios(
    log_probs: Tensor, old_log_probs: Tensor, loss_mask: Tensor, rollouts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The logarithm of `s` and the trained tokens of each sequence, and which sequence each row belongs to."""
    differences = log_ratios(log_probs, old_log_probs, loss_mask)
    num_rows = len(differences)
    if rollouts is None:
        groups = torch.arange(num_rows, device=differences.device)
    elif rollouts.shape != (num_rows,):
        raise InvalidRequest("rollouts", f"have shape {tuple(rollouts.shape)} for {num_rows} rows")
    else:
        groups = torch.unique(rollouts, return_inverse=True)[1].to(differences.device)
    empty = differences.new_zeros(int(groups.max()) + 1)
    sizes = empty.index_add(0, groups, loss_mask.bool().sum(-1).to(differences.dtype))
    return empty.index_add(0, groups, differences.sum(-1)) / sizes.clamp(min=1), sizes, groups
