"""Where an eviction should stop: the low watermark that makes a turn cheapest, from what was measured.

    B  max_tokens     /|    /|    /|        a batch is due whenever the conversation reaches B,
                     / |   / |   / |        and takes it down to W; then it grows by g a turn
    W  watermark    /  |  /  |  /  |/
    P  protected   ----------------------   the prologue and all that stays: in front of the cut

Derivation. From W to B the conversation takes

    n(W) = max(1, (B - W + o) / g)   turns,   o = g * (1 + v^2) / 2

where o is by how much the turn that reaches B overshoots it on average (renewal theory), v being the standard deviation
of the growth over its mean: one large tool result makes up for many batches. A batch changes the first thing behind P,
so what is behind the cut, W - P tokens, is computed again at the prefill rate r, or under moves brought to its new
place at the move rate, and a batch costs `fixed` seconds besides:

    edit(W) = fixed + (W - P) / rate            seconds a batch

Both fall with W: alone they say "evict everything". What speaks against it is that evicted text is wanted again. A turn
must evict what a turn adds, g tokens, whatever W is; but a low W evicts them younger. Let `reread_share` q be the share
of text that is read again after it was just written, and let that fall off with its age a, in tokens written since, as
exp(-a / L). A batch evicts ages from W - P to B - P + o, evenly, so of the tokens that it evicts

    again(W) = q * L / (B + o - W) * (exp(-(W - P) / L) - exp(-(B + o - P) / L))

come back, and each is computed at the prefill rate and takes its `reread_overhead` (the call that fetches it) times as
long. They count as growth, which a turn then has more of: G = g * (1 + again(W)). So

    cost(W) = edit(W) / n(W; G)  +  g * again(W) * (1 + reread_overhead) / r        seconds a turn

Moves make an edit cheap and so W high: much context is kept. Exact prefill makes it dear and W low. There is no closed
form; the cost is evaluated on a grid between P and B, the same grid always, and the cheapest wins (the higher of two).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from acmserve.errors import InvalidRequest

_NUM_STEPS = 256
# Before anything was measured: one token in five is wanted again, most of them within a quarter of the budget, and the
# call that fetches them (a step of the agent) takes four times as long as reading them.
PRIOR_REREAD_SHARE = 0.2
PRIOR_REREAD_PART = 0.25
PRIOR_REREAD_OVERHEAD = 4.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a session and its engine have shown. Tokens, seconds, tokens a second.

    `move_rate` is None where KV is not moved (fidelity `exact`). `protected` are tokens in front of the first thing
    that may be evicted. `reread_span` is L of the derivation, None for a quarter of the budget.
    `growth_variation` is v.
    """

    growth: float
    prefill_rate: float
    move_rate: float | None = None
    protected: int = 0
    fixed_seconds: float = 0.0
    reread_share: float = PRIOR_REREAD_SHARE
    reread_span: float | None = None
    reread_overhead: float = PRIOR_REREAD_OVERHEAD
    growth_variation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("growth", "prefill_rate", "move_rate", "reread_span"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidRequest(name, f"must be more than 0, not {value!r}.")
        for name in ("protected", "fixed_seconds", "reread_share", "reread_overhead", "growth_variation"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequest(name, f"must not be negative, but is {value!r}.")


def auto_watermark(max_tokens: int, measured: Measured, least: int = 0) -> int:
    """The cheapest low watermark in tokens: at most `max_tokens`, and never below `least` or what is protected.

    Under `exact` the cheapest is often the lowest; `least` is for who wants to keep more than what pays.
    """
    low = min(max(measured.protected, least), max_tokens)
    marks = (max_tokens - (max_tokens - low) * step // _NUM_STEPS for step in range(_NUM_STEPS + 1))
    return min(marks, key=lambda mark: cost_per_turn(mark, max_tokens, measured))


def cost_per_turn(watermark: int, max_tokens: int, measured: Measured) -> float:
    """Seconds that a turn costs on average because the conversation is kept below `max_tokens` at this watermark."""
    again = reread_share(watermark, max_tokens, measured)
    growth = measured.growth * (1 + again)
    num_turns = max(1.0, (max_tokens - watermark + _overshoot(measured)) / growth)
    rate = measured.prefill_rate if measured.move_rate is None else measured.move_rate
    edit = measured.fixed_seconds + max(0, watermark - measured.protected) / rate
    return edit / num_turns + measured.growth * again * (1 + measured.reread_overhead) / measured.prefill_rate


def reread_share(watermark: int, max_tokens: int, measured: Measured) -> float:
    """The share of evicted tokens that are wanted again, `again(W)` of the derivation."""
    span = measured.reread_span if measured.reread_span is not None else max_tokens * PRIOR_REREAD_PART
    reached = max_tokens + _overshoot(measured)
    young, old = max(0, watermark - measured.protected) / span, max(0, reached - measured.protected) / span
    if old - young < 1e-9:
        return measured.reread_share * math.exp(-old)
    return measured.reread_share * (math.exp(-young) - math.exp(-old)) / (old - young)


def _overshoot(measured: Measured) -> float:
    return measured.growth * (1 + measured.growth_variation**2) / 2
