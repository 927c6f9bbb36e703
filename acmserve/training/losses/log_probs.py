"""Log-probabilities of given tokens under a model's logits, in float32 whatever the model computes in.

Decision: one row at a time is turned to float32. Log-probabilities in bfloat16 have two digits, too few for a ratio of
two policies that is clipped at 0.0003. A whole batch in float32 would double the largest tensor of a training step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acmserve.errors import InvalidRequest


def sampled_log_probs(logits: Tensor, input_ids: Tensor) -> Tensor:
    """The log-probability of each token after the ones in front of it, `[batch, length]`.

    `logits` are `[batch, length, vocabulary]`. The first token of a row has no context, and 0.
    """
    if logits.shape[:2] != input_ids.shape:
        raise InvalidRequest("logits", f"have shape {tuple(logits.shape)}, and the ids {tuple(input_ids.shape)}")
    rows = []
    for narrow, ids in zip(logits[:, :-1], input_ids[:, 1:], strict=True):
        row = _at_least_float32(narrow)
        chosen = row.gather(-1, ids.long().unsqueeze(-1)).squeeze(-1)
        rows.append(torch.nn.functional.pad(chosen - row.logsumexp(-1), (1, 0)))
    return torch.stack(rows)


def log_ratios(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """`log_probs - old_log_probs` where the mask is set, elsewhere 0, in float32 or better.

    What stands behind the mask, in padding for instance, may be anything, NaN and infinities included.
    """
    if not log_probs.shape == old_log_probs.shape == mask.shape or log_probs.dim() != 2:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (log_probs, old_log_probs, mask))
        raise InvalidRequest("log_probs", f"old ones and mask must have one shape [batch, length], not {shapes}")
    is_set, zero = mask.bool(), log_probs.new_zeros((), dtype=torch.float32)
    new = torch.where(is_set, _at_least_float32(log_probs), zero)
    return new - torch.where(is_set, _at_least_float32(old_log_probs.detach()), zero)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
