"""A context that may come, as data: what it would be, why, how likely, and what of it there is to compute.

It plans nothing (`planner`, `clearing`) and computes nothing (`server.precompute`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.omissions import Omissions


class Reason(Enum):
    """Why a context may come."""

    EVICTION = "eviction"
    ACT_END = "end of an act"
    CLEARING = "clearing"
    NEXT_MESSAGE = "next message"
    FOLD = "fold"
    AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class PrecomputeCandidate:
    """A state that may be rendered at the next turn, with this probability, at the latest in about `num_turns` turns.

    `num_new` counts the tokens behind its first difference from what was served: what an exact prefill computes. The
    last `num_open` of them will be others if it comes a turn later, and are not worth computing yet.
    """

    state: SessionState
    reason: Reason
    probability: float
    num_turns: int
    num_new: int
    num_open: int = 0


def candidates_of(
    meter: ContextMeter, state: SessionState, omissions: Omissions, reason: Reason, probability: float, num_turns: int
) -> PrecomputeCandidate:
    """The state with `omissions` taken out, beside what the meter has taken out of it now. Pure."""
    view = meter.view
    num_new = view.with_omissions(omissions).shown_tokens(view.first_difference(omissions))
    return PrecomputeCandidate(replace(state, omissions=omissions), reason, probability, num_turns, num_new)
