"""From what a request asks for to the plan that is carried out: the four fidelities.

    exact    nothing is moved, and no moved prefix is kept
    reuse    everything is moved that can be
    repair   that, less what `Repair` names: it is computed in its new context
    auto     one of the three, chosen for this edit by `auto.choose_fidelity`

The engine and the forecast of a client plan with this one function. Pure: tokens and sources in, a frozen plan out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from acmserve.plan.auto import (
    AUTO_REPAIR,
    DEFAULT_THRESHOLDS,
    REST_TOKENS,
    AutoDecision,
    Thresholds,
    choose_fidelity,
    measure,
)
from acmserve.plan.pieces import EditPlan
from acmserve.plan.planner import DEFAULT_MIN_MOVE_TOKENS, plan_edit
from acmserve.plan.repair import DEFAULT_REPAIR, Repair, Span, plan_repair, without
from acmserve.plan.rules.rotations import MAX_ROTATIONS
from acmserve.plan.source import ServedSequence, Tokens


@dataclass(frozen=True, slots=True)
class RequestedFidelity:
    """The fidelity that a request asks for. `repair` counts under `repair` and `auto`."""

    fidelity: str = "exact"
    repair: Repair = DEFAULT_REPAIR


@dataclass(frozen=True, slots=True)
class FidelityPlan:
    """`anew`: prompt ranges that KV of an earlier context could have served and that are computed for fidelity's sake.

    `choice` is what `auto` decided, None where the request decided itself.
    """

    plan: EditPlan
    anew: tuple[Span, ...] = ()
    choice: AutoDecision | None = None


def plan_wish(
    prompt: Tokens,
    sources: Sequence[ServedSequence],
    wish: RequestedFidelity,
    *,
    num_cached: int = 0,
    min_move_tokens: int = DEFAULT_MIN_MOVE_TOKENS,
    max_rotations: int = MAX_ROTATIONS,
    refusal: str | None = None,
    media_shift_positions: bool = False,
    rest_tokens: int = REST_TOKENS,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> FidelityPlan:
    """Plan `prompt` (int32 [n], n >= 1) as `wish` says. With a `refusal` nothing can be moved at all.

    `num_cached`, `min_move_tokens`, `max_rotations` and `media_shift_positions` as in `plan_edit`. `sources` are the
    newest first. `rest_tokens` is the shortest rest that moves under `auto`: where each hole is a forward pass of its
    own, a short one is not worth it.
    """

    def plan(allow_moves: bool) -> EditPlan:
        return plan_edit(
            prompt,
            sources,
            allow_moves=allow_moves,
            num_cached=num_cached,
            min_move_tokens=min_move_tokens,
            max_rotations=max_rotations,
            media_shift_positions=media_shift_positions,
        )

    if wish.fidelity == "exact" or refusal is not None:
        return FidelityPlan(plan(False), choice=refused(wish, refusal))
    most = plan(True)
    if wish.fidelity == "reuse":
        return FidelityPlan(most)
    if wish.fidelity == "repair":
        return _less(most, plan_repair(most, prompt, sources, wish.repair, min_move_tokens))
    survey = measure(most, prompt, sources, min_move_tokens, rest_tokens)
    choice = choose_fidelity(survey.features, wish.repair, thresholds)
    if choice.fidelity == "reuse" or not survey.features.num_reused:
        return FidelityPlan(most, choice=choice)
    if choice.repair == AUTO_REPAIR:
        return _less(most, without(most, survey.anew), choice)
    if choice.fidelity == "repair":
        repair = replace(choice.repair, rest_tokens=choice.repair.rest_tokens or rest_tokens)
        return _less(most, plan_repair(most, prompt, sources, repair, min_move_tokens), choice)
    return _less(most, plan(False), choice)


def refused(wish: RequestedFidelity, refusal: str | None) -> AutoDecision | None:
    """What `auto` comes to where nothing can be moved."""
    return AutoDecision("exact", refusal) if wish.fidelity == "auto" and refusal is not None else None


def _less(most: EditPlan, less: EditPlan, choice: AutoDecision | None = None) -> FidelityPlan:
    """`less` is carried out. What only `most` reuses is computed for fidelity's sake."""
    anew: list[Span] = []
    for start, end in _reused(most):
        position = start
        for first, behind in _reused(less):
            if first < end and position < behind:
                if first > position:
                    anew.append((position, first))
                position = behind
        if position < end:
            anew.append((position, end))
    return FidelityPlan(less, tuple(anew), choice)


def _reused(plan: EditPlan) -> list[Span]:
    """The prompt ranges that a plan does not compute, in order."""
    kept = [(0, plan.num_kept)] if plan.num_kept else []
    return kept + [(move.dst_start, move.dst_end) for move in plan.moves]
