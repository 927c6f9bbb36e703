"""States of recurrent layers behind an edit: composed of three states and the transition over the kept suffix.

A head's state is a matrix `S`, `[key_size, value_size]` in a gated delta net. Each token has a key `k` of length 1, a
value `v`, a gate `g <= 0`, and a strength `b` in [0, 1]:

    S_t = A_t S_(t-1) + b_t k_t v_t^T           A_t = exp(g_t) (I - b_t k_t k_t^T)

In Mamba-2 it is `[value_size, key_size]`, and `A_t` is a number below 1. The step `d_t` is positive, the rate `a` not:

    S_t = A_t S_(t-1) + d_t v_t k_t^T           A_t = exp(d_t a)

`A_t` and what is added depend on the token's own inputs, and `S_t` is linear in the state before. So over a suffix
`[a, b)` with the transition `P = A_(b-1) ... A_a` a state that is another one at `a` becomes another one at `b`:

    old context   [ prefix ][ folded piece ]a[ suffix ]b          S_b  = P S_a + C
    new context   [ prefix ][ marker ]a'[ suffix ]b'              S_b' = P S_a' + C = S_b + P (S_a' - S_a)

`C` is what the suffix itself wrote. In one layer alone this is exact. In a deeper model the inputs of the suffix saw
the folded piece, as moved keys have, and it is the same approximation. `P` is the same recurrence without values,
begun at the identity.

    norm of P     each `A_t` has a norm of at most 1, and so has `P`
                  near 0: the state at `b` does not depend on the one at `a`, and `S_b` alone would do

Tensors only. Does not know layers, blocks or requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def compose(there: Tensor, before: Tensor, after: Tensor, transitions: Sequence[Tensor]) -> Tensor:
    """The states behind a moved suffix, `[..., rows, columns]`.

    Args:
        there: the states in the new context, where the suffix begins.
        before: those in the old context, where it begins.
        after: those in the old context, where it ends.
        transitions: of adjacent parts of the suffix, first to last, each `[..., rows, rows]`, or `[..., 1, 1]` where
            it is a number.

    """
    difference = there.float() - before.float()
    for transition in transitions:
        difference = chain(difference, transition)
    return after.float() + difference


def chain(first: Tensor, then: Tensor) -> Tensor:
    """The transition over two adjacent parts, in float32. Each is `[..., rows, rows]`, a number `[..., 1, 1]`."""
    later, earlier = then.float(), first.float()
    return later * earlier if later.shape[-2:] == (1, 1) else later @ earlier


def norm_bound(transition: Tensor) -> float:
    """How much of a difference may be left behind a transition `[..., rows, rows]`, of all heads at most.

    The bound is the eighth root of the sum of the eighth powers of all singular values. It is not less than the
    spectral norm of any head, and at most 1.9 times that norm for keys of 128.
    """
    gram = transition.double().mT @ transition.double()
    square = gram @ gram
    return float(square.square().sum(dim=(-2, -1)).max() ** 0.125)
