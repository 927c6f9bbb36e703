"""The losses: finite differences, TRL's formula, the clip, groups without variance, bfloat16, garbage in padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from acmserve.errors import InvalidRequest
from acmserve.training.losses.fold_grpo import fold_grpo_loss
from acmserve.training.losses.gspo import MAX_LOG_RATIO, gspo_loss, sequence_ratios
from acmserve.training.losses.log_probs import sampled_log_probs

Loss = Callable[..., Tensor]
WIDE = {"clip_low": 0.2, "clip_high": 0.28}
MASK = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
ADVANTAGES = torch.tensor([1.5, -0.5, -1.0, 0.7], dtype=torch.float64)


def batch(spread: float = 0.05, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Log-probabilities of two near policies."""
    made = torch.Generator().manual_seed(seed)
    old = -4 * torch.rand(MASK.shape, generator=made, dtype=torch.float64)
    return (old + spread * torch.randn(MASK.shape, generator=made, dtype=torch.float64)).to(dtype), old.to(dtype)


def trl_loss(new: Tensor, old: Tensor, mask: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """As TRL 1.16 has it for `importance_sampling_level="sequence"` and `loss_type="grpo"`, in its order."""
    weights = ((new - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
    coef_1 = torch.exp(weights.unsqueeze(-1))
    coef_2 = torch.clamp(coef_1, 1 - low, 1 + high)
    per_token = -torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1))
    return ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()


@pytest.mark.parametrize("spread", [0.01, 0.5])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (0.0003, 0.0004)])
def test_gspo_is_that_of_trl(spread: float, low: float, high: float) -> None:
    for seed in range(20):
        new, old = batch(spread, seed=seed)
        ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
        loss = gspo_loss(ours, old, MASK, ADVANTAGES, clip_low=low, clip_high=high)
        expected = trl_loss(theirs, old, MASK, ADVANTAGES, low, high)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-15)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-15)


def token_advantages() -> Tensor:
    return ADVANTAGES.unsqueeze(1) * torch.linspace(0.5, 1.5, MASK.shape[1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "advantages", "options"),
    [
        (gspo_loss, ADVANTAGES, {}),
        (gspo_loss, torch.tensor([0.4, -0.5, 0.4, -0.5]), {"rollouts": torch.tensor([7, 3, 7, 3])}),
        (fold_grpo_loss, token_advantages(), {}),
    ],
    ids=["gspo", "gspo of rollouts", "fold_grpo"],
)
@pytest.mark.parametrize("spread", [0.02, 0.6])
def test_gradients_are_finite_differences(
    loss: Loss, advantages: Tensor, options: dict[str, Any], spread: float
) -> None:
    for seed in range(5):
        new, old = batch(spread, seed=seed)

        def value(log_probs: Tensor, old: Tensor = old) -> Tensor:
            return loss(log_probs, old, MASK, advantages, **options, **WIDE)

        assert torch.autograd.gradcheck(value, new.requires_grad_())


def test_the_clip_is_asymmetric() -> None:
    """Above its bound a good sequence, and below it a bad one, gives no gradient. The other two do."""
    mask, old = torch.ones(1, 2), torch.zeros(1, 2)
    for ratio, advantage, is_clipped in [
        (1 + 0.00045, 1.0, True),
        (1 + 0.00035, 1.0, False),
        (1 - 0.00035, -1.0, True),
        (1 - 0.00025, -1.0, False),
        (1 - 0.00035, 1.0, False),
        (1 + 0.00045, -1.0, False),
    ]:
        new = torch.full((1, 2), math.log(ratio), dtype=torch.float64, requires_grad=True)
        gspo_loss(new, old, mask, torch.tensor([advantage])).backward()
        assert (new.grad == 0).all() == is_clipped, (ratio, advantage)


@pytest.mark.parametrize("loss", [gspo_loss, fold_grpo_loss])
def test_a_group_without_variance_gives_no_gradient(loss: Loss) -> None:
    new, old = batch()
    zeros = torch.zeros(len(new)) if loss is gspo_loss else torch.zeros(new.shape)
    value = loss(new.requires_grad_(), old, MASK, zeros)
    value.backward()
    assert value == 0
    assert (new.grad == 0).all()


def test_samples_of_a_rollout_are_one_sequence() -> None:
    """A trajectory cut in two has the ratio, the loss and the gradient of the whole one."""
    new, old = batch(0.1)
    whole, halves = new[:1].clone().requires_grad_(), new[:1].repeat(2, 1).requires_grad_()
    first = MASK[:1] * torch.tensor([1, 1, 0, 0, 0])
    masks, rollouts = torch.cat([first, MASK[:1] - first]), torch.tensor([4, 4])
    old, advantage = old[:1], torch.tensor([0.5])
    together = gspo_loss(halves, old.repeat(2, 1), masks, advantage.repeat(2), rollouts=rollouts, **WIDE)
    alone = gspo_loss(whole, old, MASK[:1], advantage, **WIDE)
    assert together.item() == pytest.approx(alone.item(), rel=1e-12)
    together.backward()
    alone.backward()
    torch.testing.assert_close(halves.grad.sum(0), whole.grad[0], rtol=1e-12, atol=0)
    ratios = sequence_ratios(halves, old.repeat(2, 1), masks, rollouts=rollouts).tolist()
    assert ratios == pytest.approx(2 * sequence_ratios(whole, old, MASK[:1]).tolist(), rel=1e-12)
    assert gspo_loss(halves, old.repeat(2, 1), masks, advantage.repeat(2), **WIDE) != together


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("loss", [gspo_loss, fold_grpo_loss])
def test_padding_may_hold_anything(loss: Loss, garbage: float) -> None:
    new, old = batch()
    advantages = ADVANTAGES if loss is gspo_loss else token_advantages()
    expected = loss(new, old, MASK, advantages, **WIDE)
    is_set = MASK.bool()
    dirty = torch.where(is_set, new, garbage).requires_grad_()
    value = loss(dirty, torch.where(is_set, old, garbage), MASK, advantages, **WIDE)
    assert value == expected
    value.backward()
    assert dirty.grad.isfinite().all()
    assert (dirty.grad[~is_set] == 0).all()


@pytest.mark.parametrize("loss", [gspo_loss, fold_grpo_loss])
def test_far_policies_give_finite_numbers(loss: Loss) -> None:
    new = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    advantages = torch.tensor([-1.0]) if loss is gspo_loss else torch.full((1, 2), -1.0)
    value = loss(new, torch.tensor([[-9000.0, -9000.0]]), torch.ones(1, 2), advantages)
    value.backward()
    assert value.item() == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-5)
    assert new.grad.isfinite().all()


def test_log_probs_of_bfloat16_logits_are_those_of_float64() -> None:
    """And a ratio of them is right to a hundredth of the narrow clip. Computed in bfloat16 it is not."""
    made = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn((2, 40, 500), generator=made)).bfloat16()
    moved = logits + (0.01 * torch.randn(logits.shape, generator=made)).bfloat16()
    ids = torch.randint(0, 500, (2, 40), generator=made)
    mask = torch.ones(2, 40)
    mask[:, 0] = 0
    exact = [torch.log_softmax(one[:, :-1].double(), -1) for one in (moved, logits)]
    exact = [one.gather(-1, ids[:, 1:, None]).squeeze(-1) for one in exact]
    expected = (exact[0] - exact[1]).mean(-1).exp()
    found = [sampled_log_probs(one, ids) for one in (moved, logits)]
    assert found[0].dtype == torch.float32
    assert (found[0][:, 0] == 0).all()
    torch.testing.assert_close(found[0][:, 1:].double(), exact[0], rtol=1e-5, atol=1e-5)
    ratios = sequence_ratios(*found, mask)
    assert (ratios.double() - expected).abs().max() < 3e-6
    narrow = [torch.log_softmax(one[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1) for one in (moved, logits)]
    naive = (narrow[0] - narrow[1]).mean(-1).exp()
    assert (naive.double() - expected).abs().max() > 3e-4


def test_bfloat16_log_probs_are_subtracted_and_summed_in_float32() -> None:
    """Thousands of small terms would stop growing in bfloat16, and a mask would count to 256."""
    new, old, mask = (torch.full((1, 4096), value, dtype=torch.bfloat16) for value in (-1.0, -1.0078125, 1.0))
    ratio = sequence_ratios(new, old, mask)
    assert ratio.dtype == torch.float32
    assert ratio.item() == pytest.approx(math.exp(0.0078125), rel=1e-6)
    loss = gspo_loss(new.requires_grad_(), old, mask, torch.tensor([1.0]), clip_high=0.1)
    loss.backward()
    assert new.grad.dtype == torch.bfloat16
    assert loss.item() == pytest.approx(-math.exp(0.0078125), rel=1e-6)


def test_log_probs_have_the_gradient_of_a_softmax() -> None:
    ids = torch.tensor([[1, 2, 0]])
    logits = torch.randn((1, 3, 4), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda one: sampled_log_probs(one, ids), logits)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda new, old: gspo_loss(new, old[:1], MASK, ADVANTAGES), "log_probs"),
        (lambda new, old: gspo_loss(new, old, MASK, ADVANTAGES[:1]), "advantages"),
        (lambda new, old: gspo_loss(new, old, MASK, ADVANTAGES, rollouts=torch.zeros(1)), "rollouts"),
        (lambda new, old: gspo_loss(new, old, MASK, ADVANTAGES, rollouts=torch.zeros(4)), "differ between the samples"),
        (lambda new, old: fold_grpo_loss(new, old, MASK, ADVANTAGES), "advantages"),
        (lambda new, _: sampled_log_probs(new.unsqueeze(-1), MASK[:2]), "logits"),
    ],
)
def test_shapes_that_do_not_fit_are_named(call: Loss, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        call(*batch())
