"""Composed states against the recurrence itself, with random keys, values, gates and strengths, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from acmserve.kernels.recurrent import chain, compose, norm_bound

HEADS, KEY_SIZE, VALUE_SIZE = 3, 16, 24


class Tokens:
    """Inputs of `num_tokens` tokens. `gate` is the mean of their log decay, as a power of e."""

    def __init__(self, seed: int, num_tokens: int, gate: float) -> None:
        draw = torch.Generator().manual_seed(seed)
        shape = (num_tokens, HEADS)
        key = torch.randn(*shape, KEY_SIZE, generator=draw, dtype=torch.float64)
        self.key = key / key.norm(dim=-1, keepdim=True)
        self.value = torch.randn(*shape, VALUE_SIZE, generator=draw, dtype=torch.float64)
        self.decay = torch.exp(-torch.exp(gate + torch.randn(shape, generator=draw, dtype=torch.float64)))
        self.strength = torch.sigmoid(torch.randn(shape, generator=draw, dtype=torch.float64))

    def run(self, state: Tensor, *, has_values: bool = True) -> Tensor:
        """The gated delta rule, token by token, from `state` `[heads, key_size, ...]` on."""
        for key, value, decay, strength in zip(self.key, self.value, self.decay, self.strength, strict=True):
            state = decay[:, None, None] * state
            wanted = value if has_values else torch.zeros(HEADS, state.shape[-1], dtype=state.dtype)
            change = strength[:, None] * (wanted - (key[:, None, :] @ state)[:, 0])
            state = state + key[:, :, None] * change[:, None, :]
        return state


class Steps(Tokens):
    """Inputs of Mamba-2: steps, and a rate for each head."""

    def run(self, state: Tensor, *, has_values: bool = True) -> Tensor:
        """The recurrence, token by token, from `state` `[heads, value_size, key_size]` on."""
        for key, value, decay, step in zip(self.key, self.value, self.decay, self.strength, strict=True):
            state = decay[:, None, None] * state
            if has_values:
                state = state + step[:, None, None] * value[:, :, None] * key[:, None, :]
        return state


def transition_over(tokens: Tokens) -> Tensor:
    return tokens.run(torch.eye(KEY_SIZE, dtype=torch.float64).repeat(HEADS, 1, 1), has_values=False)


@pytest.mark.parametrize(("seed", "gate"), [(0, -6.0), (1, -4.0), (2, -6.0), (3, -5.0)])
def test_a_composed_state_is_that_of_the_edited_context(seed: int, gate: float) -> None:
    lengths = torch.randint(1, 40, (5,), generator=torch.Generator().manual_seed(seed)).tolist()
    prefix, folded, marker, first, rest = (Tokens(10 * seed + i, n, gate) for i, n in enumerate(lengths))
    start = prefix.run(torch.zeros(HEADS, KEY_SIZE, VALUE_SIZE, dtype=torch.float64))
    before = folded.run(start)
    after = rest.run(first.run(before))
    there = marker.run(start)
    exact = rest.run(first.run(there))
    found = compose(there, before, after, [transition_over(first), transition_over(rest)])
    scale = float(exact.norm())
    assert float((found - exact).norm()) <= 1e-6 * scale
    # Controls: the state left as it was, and the parts of the suffix in the wrong order.
    assert float((after - exact).norm()) > 1e-4 * scale
    swapped = compose(there, before, after, [transition_over(rest), transition_over(first)])
    assert float((swapped - exact).norm()) > 1e-5 * scale


@pytest.mark.parametrize("seed", [0, 1])
def test_a_transition_that_is_a_number_composes_states_of_mamba_2(seed: int) -> None:
    prefix, folded, marker, suffix = (Steps(10 * seed + i, 20 + 7 * i, -5.0) for i in range(4))
    start = prefix.run(torch.zeros(HEADS, VALUE_SIZE, KEY_SIZE, dtype=torch.float64))
    before, there = folded.run(start), marker.run(start)
    after, exact = suffix.run(before), suffix.run(there)
    transition = suffix.run(torch.ones(HEADS, 1, 1, dtype=torch.float64), has_values=False)
    assert torch.allclose(transition[:, 0, 0], suffix.decay.prod(dim=0))
    found = compose(there, before, after, [transition])
    assert float((found - exact).norm()) <= 1e-6 * float(exact.norm())
    assert float((after - exact).norm()) > 1e-4 * float(exact.norm()), "the control: left as it was"
    assert norm_bound(transition) == pytest.approx(float(transition.max()))


@pytest.mark.parametrize("is_number", [False, True])
def test_a_chain_is_the_transition_over_both_parts(is_number: bool) -> None:
    """The reference runs the recurrence token by token. Control: the parts in the wrong order."""
    first, then = ((Steps if is_number else Tokens)(seed, 20, -4.0) for seed in (5, 6))
    start = torch.eye(KEY_SIZE, dtype=torch.float64).repeat(HEADS, 1, 1)
    start = start[:, :1, :1] if is_number else start
    parts = [tokens.run(start, has_values=False) for tokens in (first, then)]
    whole = then.run(parts[0], has_values=False)
    assert torch.allclose(chain(*parts).double(), whole, atol=1e-6)
    assert norm_bound(whole) <= norm_bound(parts[0]), "no part makes a transition larger"
    swapped = chain(*reversed(parts)).double()
    assert is_number or float((swapped - whole).norm()) > 1e-3 * float(whole.norm())


@pytest.mark.parametrize("gate", [-6.0, -3.0])
def test_the_bound_is_one_and_not_far_off(gate: float) -> None:
    transition = transition_over(Tokens(7, 40, gate))
    spectral = float(torch.linalg.matrix_norm(transition, ord=2).max())
    assert spectral <= norm_bound(transition) <= KEY_SIZE**0.125 * spectral
    assert spectral <= 1


def test_what_decayed_needs_no_transition() -> None:
    assert norm_bound(transition_over(Tokens(8, 60, 0.0))) < 1e-3
