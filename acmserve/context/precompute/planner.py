"""The contexts that a session may be asked for next, so that an idle engine can compute them now.

    the eviction that comes      usage has passed the prepare mark. The plan is kept and will be carried out
    the one after an act's end   no plan is kept, since an act needs what would go, and the next turn may need the room
    clearing edits               what `context_management` of the last request takes out next (`clearing.py`)
    folds                        each fragment that is visible, folded by itself, the newest first
    the context as it is         it was served with moved KV, or edited since

Window: an eviction whose context is computed costs no more than an append, and a turn put before it has to be computed
twice. So one that is ready comes as soon as the next two turns of average size g may reach the budget. A large result
that lands just below the budget then goes behind the eviction at once. Elsewhere it would leave one pause to compute
all of it again.

Prepare mark: an eviction can be precomputed only in the pause after a turn that ends *below* the window. The turn
that passes both the mark and the window finds nothing ready. With the mark m below the window, that is exp(-m / g) of
all turns for a spread like that of an exponential distribution. It is next to none for turns of about one size. Where
now and then a turn is much larger, m is as large as the largest of the last turns. It is no more than what an eviction
takes. It is that much until enough turns were seen to know the largest. Being early costs little, since a kept plan
stays the same: what is appended meanwhile, m + 2 g at most, is computed a second time. So

    mark = max_tokens - reserve - 2 g - m,    m = min(largest, max_tokens - low).

What the early plan takes: by the time it is carried out the prompt has grown to `max_tokens` and half a turn more. That
is the overshoot of `low_watermark.py`. The plan brings the prompt down to the low watermark. So as much is taken out
now as will be taken then, max_tokens + overshoot - low, which leaves less than the watermark for the moment. Little by
little more may be taken (an exploration is needed until its act is done). Each better plan would be computed anew from
its first difference on. So a plan is made when three quarters of that can be had. Within 2 g of the budget, three
quarters of what is there to be taken at all are enough. Where the next turn of size g would go over the budget, any
plan is enough that makes room for two such turns.

Pure, but for `plan_precompute`, which renews the kept plan. Same history, same answers, same ends of turns: same plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from acmserve.context.edits import fragments as edit
from acmserve.context.episodes.episode import Kind
from acmserve.context.eviction import registry
from acmserve.context.eviction.clearing_edits import VendorEdit
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.eviction.planned_eviction import NUM_GROWTHS, PlannedEviction, keep_eviction, takes_what_is_needed
from acmserve.context.precompute.candidate import PrecomputeCandidate, Reason, candidates_of
from acmserve.context.precompute.clearing import cleared, clearings, pending_uses
from acmserve.context.session.budget import Budget
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.low_watermark import Measured
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import Conflict

LEAST_SHARE = 0.75
MAX_FOLDS = 3
# Of the last fragment cut, every second one is folded next. Of those before it, half as many each.
_PRIOR_FOLD = 0.5
# The acts of the bundled trace have four steps.
_PRIOR_END = 0.25


@dataclass(frozen=True, slots=True)
class View:
    """What is known at the end of a turn. `measured` is None where no budget holds.

    `num_stale`: tokens at the end of the context as it is whose KV is not exact. `edits` are those of the last request.
    """

    budget: Budget | None = None
    measured: Measured | None = None
    edits: Sequence[VendorEdit] = ()
    num_stale: int = 0
    suite: str = "sculptor"


def can_foresee(state: SessionState, budget: Budget | None, edits: Sequence[VendorEdit]) -> bool:
    """Whether `plan_precompute` may find an edit. Where it may not, nothing has to be counted. Pure."""
    return (
        budget is not None
        or bool(edits)
        or any(fragment.visibility is Visibility.VISIBLE for fragment in state.fragments)
    )


def plan_precompute(
    meter: ContextMeter, state: SessionState, view: View, tokenizer: Tokenizer
) -> tuple[PrecomputeCandidate, ...]:
    """What may come next, the likeliest first. The meter follows the state, and keeps the eviction planned.

    In an open branch nothing is predicted: it ends with a context that nobody knows yet.
    """
    meter.turn_stats.end_turn(meter.token_counts.between(0, len(meter.token_counts)))
    if state.branch is not None:
        meter.turn_stats.kept = None
        return ()
    num_pending = pending_uses(meter.graph.outline)
    growth = meter.turn_stats.growth(_growth(view.measured))
    omissions = cleared(meter, meter.omissions, view.edits, num_pending)
    found = clearings(meter, state, omissions, view.edits, growth, num_pending)
    meter.turn_stats.kept = renewed_eviction(meter, state, view, omissions, num_pending)
    if meter.turn_stats.kept is not None:
        assert view.budget is not None
        left = max(0, view.budget.max_tokens - meter.reserve - meter.num_tokens)
        num_turns = max(1, math.ceil(left / growth))
        after = meter.turn_stats.kept.plan.omissions
        found.append(candidates_of(meter, state, after, Reason.EVICTION, math.exp(-left / growth), num_turns))
    elif (ended := _act_ended(meter, state, view, omissions, num_pending)) is not None:
        found.append(ended)
    found += _folds(meter, state, view.suite, tokenizer)
    likely_edit = max((item.probability for item in found if item.reason is not Reason.FOLD), default=0.0)
    if view.num_stale and likely_edit < 1:
        found.append(PrecomputeCandidate(state, Reason.AS_IT_IS, 1 - likely_edit, 1, view.num_stale))
    return tuple(sorted(found, key=lambda item: -item.probability))


def heal(state: SessionState, num_stale: int) -> tuple[PrecomputeCandidate, ...]:
    """The context as it is, where not all of its KV is exact."""
    return (PrecomputeCandidate(state, Reason.AS_IT_IS, 1.0, 1, num_stale),) if num_stale else ()


def prepare_mark(meter: ContextMeter, budget: Budget, measured: Measured) -> int:
    """Tokens above which the next eviction is planned, at the end of a turn."""
    growth, eviction = meter.turn_stats.growth(measured.growth), budget.max_tokens - meter.watermark(budget, measured)
    margin = NUM_GROWTHS * growth + min(meter.turn_stats.largest_growth(eviction), eviction)
    return math.floor(budget.max_tokens - meter.reserve - margin)


def renewed_eviction(
    meter: ContextMeter, state: SessionState, view: View, omissions: Omissions, num_pending: int = 0
) -> PlannedEviction | None:
    """The eviction to keep from now on: the one that is, else a new one. Pure.

    A kept plan has to serve the next turn, too. One that could not take all that it should is exchanged when there is a
    turn's worth more to take.
    """
    budget, measured = view.budget, view.measured
    if budget is None or measured is None or registry.find(budget.policy).needs_model:
        return None
    growth = meter.turn_stats.growth(measured.growth)
    if meter.num_tokens <= prepare_mark(meter, budget, measured):
        return None
    plan, kept = (
        plan_next_eviction(meter, budget, measured, omissions, num_pending),
        _still_kept(meter, state, omissions, budget),
    )
    if kept is not None:
        now = kept.now(meter.view, meter.num_tokens)
        takes_enough = kept.plan.num_after <= kept.plan.target or plan.num_after + growth > now.num_after
        if takes_enough and now.num_after + meter.reserve + growth <= budget.max_tokens:
            return kept
    left, room = (budget.max_tokens - meter.reserve - num for num in (meter.num_tokens, plan.num_after))
    lasting = meter.view.with_omissions(omissions).lasting_tokens()
    can_have_all = left < NUM_GROWTHS * growth or plan.target >= lasting
    takes_most = plan.num_before - plan.num_after >= LEAST_SHARE * (plan.num_before - max(plan.target, lasting))
    is_due = left < growth and room >= NUM_GROWTHS * growth
    is_good = (can_have_all and takes_most and room >= 0) or is_due
    return keep_eviction(plan, state, omissions, budget) if plan.changes and is_good else None


def plan_next_eviction(
    meter: ContextMeter, budget: Budget, measured: Measured, omissions: Omissions, num_pending: int = 0
) -> EvictionPlan:
    """The eviction that brings the prompt to the low watermark once it has grown over the budget. Pure.

    Unannotated work goes only where the rest is not enough, since an act that starts meanwhile would keep it.
    """
    low = meter.watermark(budget, measured)
    overshoot = meter.turn_stats.growth(measured.growth) / 2
    policy, view = registry.policy_of(budget), meter.view.with_omissions(omissions)
    num_taken = budget.max_tokens + overshoot - low
    target = max(0, min(low, math.floor(view.shown_tokens() - num_taken)))
    plan = policy.plan(view.expecting(num_pending, act_starts=True), target)
    if plan.num_after > target and policy.needs_episodes:
        plan = policy.plan(view.expecting(num_pending), target)
    return plan


def _act_ended(
    meter: ContextMeter, state: SessionState, view: View, omissions: Omissions, num_pending: int
) -> PrecomputeCandidate | None:
    """What is evicted where the next turn goes over the budget and ends the act that runs, in the loop of one request.

    No pause comes between the end and the eviction, and with the act goes what it depended on, most of the context. Its
    last step, whose results are pending, will be gone, too. The plan is not kept: the one that comes is made then.
    """
    budget, measured, active = view.budget, view.measured, meter.graph.active
    if budget is None or measured is None or not registry.find(budget.policy).needs_episodes:
        return None
    left = budget.max_tokens - meter.reserve - meter.num_tokens
    if active is None or active.kind is not Kind.ACT or left >= meter.turn_stats.growth(measured.growth):
        return None
    target, there = meter.watermark(budget, measured), meter.view.with_omissions(omissions)
    plan = registry.policy_of(budget).plan(there.expecting(num_pending, act_ends=True), target)
    if not plan.changes or plan.num_before - plan.num_after < LEAST_SHARE * (plan.num_before - target):
        return None
    ended = candidates_of(meter, state, plan.omissions, Reason.ACT_END, _PRIOR_END, 1)
    num_open = there.with_omissions(plan.omissions).shown_tokens(there.outline.last_step())
    return replace(ended, num_open=num_open) if num_open < ended.num_new else None


def kept_plan(meter: ContextMeter, state: SessionState, budget: Budget) -> EvictionPlan | None:
    """The kept eviction, where it still applies and brings the prompt, with what is new, under the budget. Pure."""
    kept = _still_kept(meter, state, meter.omissions, budget)
    plan = None if kept is None else kept.now(meter.view, meter.num_tokens)
    return plan if plan is not None and plan.num_after + meter.reserve <= budget.max_tokens else None


def ready_plan(meter: ContextMeter, state: SessionState, budget: Budget) -> EvictionPlan | None:
    """The kept eviction, where its context was computed and the prompt comes near the budget. Pure."""
    near = NUM_GROWTHS * meter.turn_stats.growth(0.0)
    is_near = meter.num_tokens + meter.reserve + near > budget.max_tokens
    return kept_plan(meter, state, budget) if is_near and meter.turn_stats.is_ready(state) else None


def _still_kept(
    meter: ContextMeter, state: SessionState, omissions: Omissions, budget: Budget
) -> PlannedEviction | None:
    """The kept eviction, unless something else was edited or work began that depends on what would go."""
    kept = meter.turn_stats.kept
    if kept is None or not kept.applies(state, omissions, budget):
        return None
    is_needed = registry.find(budget.policy).needs_episodes and takes_what_is_needed(
        meter.view.with_omissions(kept.before), kept.plan.omissions
    )
    return None if is_needed else kept


def _growth(measured: Measured | None) -> float:
    return 0.0 if measured is None else measured.growth


def _folds(meter: ContextMeter, state: SessionState, suite: str, tokenizer: Tokenizer) -> list[PrecomputeCandidate]:
    """Each visible fragment folded by itself, the newest first. Those that a fold would not make shorter are left."""
    found: list[PrecomputeCandidate] = []
    visible = [f for f in state.fragments if f.visibility is Visibility.VISIBLE]
    for fragment in reversed(visible):
        if len(found) == MAX_FOLDS:
            break
        try:
            folded = edit.fold(state, fragment.fragment_id, suite, tokenizer)
        except Conflict:
            continue
        first = fragment.pieces[0].place.entry
        num_behind = meter.view.shown_tokens(first)
        num_new = max(1, num_behind - fragment.num_tokens)
        found.append(PrecomputeCandidate(folded, Reason.FOLD, _PRIOR_FOLD ** (len(found) + 1), 1, num_new))
    return found
