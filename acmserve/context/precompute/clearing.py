"""What clearing edits of a request will take out at its next turns, and as far as that is sure, further off.

    results now      c . c . c r c r [c r c r c r]      the last `keep` results stay
    a turn later     c . c . c . c r  c r[c r c r c r]  one more slides out of what stays. What is in front is sure

A clearing comes when its trigger is exceeded and `clear_at_least` can be freed. The first grows with the prompt, the
second as results slide, so both are looked for a few turns later, too. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.clearing_edits import VendorEdit, plan_edits
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.planned_eviction import NUM_GROWTHS
from acmserve.context.precompute.candidate import PrecomputeCandidate, Reason, candidates_of
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.outline import Outline
from acmserve.context.transcript.parts import Role


def pending_uses(outline: Outline) -> int:
    """Tool calls of the step that runs whose results come with the next turn."""
    for line in reversed(outline.lines):
        if line.role is not Role.RESULT:
            return sum(not results for results in line.results) if line.role is Role.ASSISTANT else 0
    return 0


def clearings(
    meter: ContextMeter,
    state: SessionState,
    omissions: Omissions,
    edits: Sequence[VendorEdit],
    growth: float,
    num_pending: int,
) -> list[PrecomputeCandidate]:
    """What clearing edits take out at the next turn (`omissions`), and the next clearing after that.

    Whole, where it comes within the next few turns of average size `growth`, else as far as it is sure.
    """
    found = []
    if omissions != meter.omissions:
        found.append(candidates_of(meter, state, omissions, Reason.CLEARING, 1.0, 1))
    window = NUM_GROWTHS * growth
    for num_later in range(1 if found else NUM_GROWTHS + 1):
        near = cleared(meter, omissions, edits, num_pending + num_later, num_nearer=window)
        if near != omissions:
            probability = math.exp(-1.0 - num_later)
            return [*found, candidates_of(meter, state, near, Reason.CLEARING, probability, NUM_GROWTHS + num_later)]
    margin = window + meter.turn_stats.largest_growth(0.0)
    far, farther = (
        cleared(meter, omissions, edits, num, num_nearer=margin, num_fewer=margin)
        for num in (num_pending, num_pending + 1)
    )
    if far != omissions:
        whole = candidates_of(meter, state, far, Reason.CLEARING, math.exp(-NUM_GROWTHS), NUM_GROWTHS + 1)
        there = meter.view.with_omissions(far)
        num_open = there.shown_tokens(there.first_difference(farther) if far != farther else len(state.entries))
        if num_open < whole.num_new:
            found.append(replace(whole, num_open=num_open))
    return found


def cleared(
    meter: ContextMeter,
    omissions: Omissions,
    edits: Iterable[VendorEdit],
    num_pending: int,
    num_nearer: float = 0.0,
    num_fewer: float = 0.0,
) -> Omissions:
    """What clearing edits will have taken out once the pending results are there: `keep` counts these, too.

    Of results whose trigger is `num_nearer` tokens nearer, and that are worth clearing for `num_fewer` tokens fewer.
    """
    coming = [
        replace(
            e,
            keep=max(0, e.keep - num_pending),
            trigger_uses=_less(e.trigger_uses, num_pending),
            trigger_tokens=_less(e.trigger_tokens, math.ceil(num_nearer)),
            clear_at_least=max(0, e.clear_at_least - math.ceil(num_fewer)),
        )
        if isinstance(e, ClearToolUses)
        else e
        for e in edits
    ]
    return plan_edits(meter.view.with_omissions(omissions), coming)


def _less(trigger: int | None, num: int) -> int | None:
    return None if trigger is None else max(0, trigger - num)
