"""Where an eviction should stop: the low watermark that makes a turn cheapest, from what was measured.

    B  max_tokens     /|    /|    /|        a batch is due whenever the conversation reaches B,
                     / |   / |   / |        and takes it down to W. Then it grows by g a turn
    W  watermark    /  |  /  |  /  |/
    P  protected   ----------------------   the prologue and all that stays: in front of the cut

Derivation. An eviction takes whole pieces (a level of an episode, a step), the oldest first, and stops at the first
that is enough. A turn that reaches B is whole too. So the conversation swings between the points

    E = W - u * (1 - exp(-(W - P) / u))    u = s * (1 + v_s^2) / 2    s, v_s: mean size of a piece, deviation over mean
    B + o                                  o = g * (1 + v_g^2) / 2    g, v_g: those of what a turn adds

By renewal theory a sum of such sizes exceeds a line by u or o on average. So one large result makes up for many small
ones. E counts no more than what is there above P. From E to B the conversation takes

    n = max(1, (B - E + o) / G)   turns, where a turn adds G tokens (below)

A batch changes the first thing behind P. So what is behind the cut, E - P tokens, is computed again at the prefill rate
r. Under moves it is brought to its new place at the move rate. A batch costs `fixed` seconds besides:

    edit = fixed + (E - P) / rate                      seconds a batch

Both fall with W: alone they say "evict everything". What speaks against it is that evicted text is wanted again. A turn
must evict what a turn adds whatever W is. But a low W evicts it younger. Let `reread_share` q be the share of text that
is read again after it was just written. Let that share fall off with the text's age a, in tokens written since, as
exp(-a / L). A batch evicts ages from E - P to B + o - P. All of a piece is as young as its end. The factor f allows for
that (2u is the piece that an average token belongs to). So of the tokens that a batch evicts

    again = q * f * L / (B + o - E) * (exp(-(E - P) / L) - exp(-(B + o - P) / L)),   f = (2u / L) / (1 - exp(-2u / L))

come back, and never more than q * exp(-(E - P) / L), the share of the youngest. What comes back is written, evicted and
wanted again like all else, so a turn adds G = g + G * again = g / (1 - again) tokens. Each token that comes back is
computed at the prefill rate and takes its `reread_overhead` (the call that fetches it) times as long:

    cost = edit / n  +  G * again * (1 + reread_overhead) / r        seconds a turn

Moves make an edit cheap and so W high: much context is kept. Exact prefill makes it dear and W low. There is no closed
form. The cost is evaluated on a grid between P and B, the same grid always, and the cheapest wins (the higher of two).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from acmserve.errors import InvalidRequest

_NUM_STEPS = 256
_LEAST = 1e-9
# Before anything was measured: one token in five is wanted again, most of them within a quarter of the budget. The call
# that fetches them (a step of the agent) takes four times as long as reading them.
PRIOR_REREAD_SHARE = 0.2
PRIOR_REREAD_PART = 0.25
PRIOR_REREAD_OVERHEAD = 4.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a session and its engine have shown. Tokens, seconds, tokens a second.

    `move_rate` is None where KV is not moved (fidelity `exact`). `protected` are tokens in front of the first thing
    that may be evicted. `reread_span` is L of the derivation, None for a quarter of the budget. `growth_variation` and
    `piece_variation` are standard deviations over means. `piece` is None before anything was evicted: as a turn is.
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
    piece: float | None = None
    piece_variation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("growth", "prefill_rate", "move_rate", "reread_span", "piece"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidRequest(name, f"must be more than 0, not {value!r}.")
        variations = ("growth_variation", "piece_variation")
        for name in ("protected", "fixed_seconds", "reread_share", "reread_overhead", *variations):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequest(name, f"must not be negative, but is {value!r}.")
        if self.reread_share >= 1:
            raise InvalidRequest("reread_share", f"must be less than 1, not {self.reread_share!r}.")

    @property
    def overshoot(self) -> float:
        """By how much the turn that reaches the budget exceeds it on average, o."""
        return self.growth * (1 + self.growth_variation**2) / 2

    @property
    def undershoot(self) -> float:
        """By how much the last piece of an eviction is more than was asked for on average, u."""
        return self.overshoot if self.piece is None else self.piece * (1 + self.piece_variation**2) / 2


def cheapest_low_watermark(max_tokens: int, measured: Measured, least: int = 0) -> int:
    """The cheapest low watermark in tokens: at most `max_tokens`, and never below `least` or what is protected.

    Under `exact` the cheapest is often the lowest. `least` is for who wants to keep more than what pays.
    """
    low = min(max(measured.protected, least), max_tokens)
    marks = (max_tokens - (max_tokens - low) * step // _NUM_STEPS for step in range(_NUM_STEPS + 1))
    return min(marks, key=lambda mark: cost_per_turn(mark, max_tokens, measured))


def cost_per_turn(watermark: int, max_tokens: int, measured: Measured) -> float:
    """Seconds that a turn costs on average because the conversation is kept below `max_tokens` at this watermark."""
    again = reread_share(watermark, max_tokens, measured)
    growth = measured.growth / (1 - again)
    end = _end(watermark, measured)
    num_turns = max(1.0, (max_tokens - end + measured.overshoot) / growth)
    rate = measured.prefill_rate if measured.move_rate is None else measured.move_rate
    edit = measured.fixed_seconds + max(0.0, end - measured.protected) / rate
    return edit / num_turns + growth * again * (1 + measured.reread_overhead) / measured.prefill_rate


def reread_share(watermark: int, max_tokens: int, measured: Measured) -> float:
    """The share of evicted tokens that are wanted again, `again` of the derivation."""
    span = measured.reread_span if measured.reread_span is not None else max_tokens * PRIOR_REREAD_PART
    young = max(0.0, _end(watermark, measured) - measured.protected) / span
    old = max(0.0, max_tokens + measured.overshoot - measured.protected) / span
    most = measured.reread_share * math.exp(-young)
    if old - young < _LEAST:
        return most
    piece = max(_LEAST, 2 * measured.undershoot / span)
    mean = (math.exp(-young) - math.exp(-old)) / (old - young)
    return min(most, measured.reread_share * mean * piece / -math.expm1(-piece))


def _end(watermark: int, measured: Measured) -> float:
    """Where an eviction to the watermark ends on average, E: less than a piece below, never below what is protected."""
    above, under = watermark - measured.protected, measured.undershoot
    return watermark + under * math.expm1(-above / under) if above > 0 else watermark
