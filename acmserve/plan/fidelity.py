"""From what a request asks for to the plan that is carried out: the four fidelities.

    exact    nothing is moved, and no moved prefix is kept
    reuse    everything is moved that can be
    repair   that, less what `Repair` names: it is computed in its new context
    auto     one of the three, chosen for this edit by `auto.choose_fidelity`

The engine and the forecast of a client plan with this one function. Pure: tokens and sources in, a frozen plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from acmserve.plan.auto import (
    AUTO_REPAIR,
    DEFAULT_THRESHOLDS,
    AutoDecision,
    Thresholds,
    choose_fidelity,
    measure,
)
from acmserve.plan.calibration import NEVER_MOVES
from acmserve.plan.pieces import EditPlan
from acmserve.plan.planner import DEFAULT_MIN_MOVE_TOKENS, plan_edit
from acmserve.plan.repair import DEFAULT_REPAIR, Grain, Repair, Span, grain_of, plan_repair, without
from acmserve.plan.rules.rotations import MAX_ROTATIONS
from acmserve.plan.source import ServedSequence, Tokens


@dataclass(frozen=True, slots=True)
class RequestedFidelity:
    """The fidelity that a request asks for. `repair` counts under `repair` and `auto`. None: it asks for no other."""

    fidelity: str = "exact"
    repair: Repair | None = None


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
    has_passes: bool = True,
    thresholds: Thresholds | None = DEFAULT_THRESHOLDS,
) -> FidelityPlan:
    """Plan `prompt` (int32 [n], n >= 1) as `wish` says. With a `refusal` nothing can be moved at all.

    `num_cached`, `min_move_tokens`, `max_rotations` and `media_shift_positions` as in `plan_edit`. `sources` are the
    newest first. `has_passes`: all holes of a request are computed in one forward pass (`repair.grain_of`).
    Without `thresholds`, `auto` moves nothing.
    """
    if wish.fidelity == "auto" and thresholds is None:
        refusal = refusal or NEVER_MOVES

    def plan(allow_moves: bool, least: int) -> EditPlan:
        return plan_edit(
            prompt,
            sources,
            allow_moves=allow_moves,
            num_cached=num_cached,
            min_move_tokens=least,
            max_rotations=max_rotations,
            media_shift_positions=media_shift_positions,
        )

    if wish.fidelity == "exact" or refusal is not None:
        return FidelityPlan(plan(False, min_move_tokens), choice=refused(wish, refusal))
    if wish.fidelity == "auto" and thresholds is not None:
        return _plan_auto(plan, prompt, sources, wish, grain_of(min_move_tokens, has_passes), thresholds)
    most = plan(True, min_move_tokens)
    if wish.fidelity == "repair":
        return _less(most, plan_repair(most, prompt, sources, wish.repair or DEFAULT_REPAIR, min_move_tokens))
    return FidelityPlan(most)


def _plan_auto(
    plan: Callable[[bool, int], EditPlan],
    prompt: Tokens,
    sources: Sequence[ServedSequence],
    wish: RequestedFidelity,
    grain: Grain,
    thresholds: Thresholds,
) -> FidelityPlan:
    """What `auto` comes to. `plan` makes the plan with or without moves, of pieces of at least so many tokens."""
    most = plan(True, grain.piece_tokens)
    survey = measure(most, prompt, sources, grain)
    choice = choose_fidelity(survey.features, wish.repair, thresholds)
    if choice.fidelity == "reuse" or not survey.features.num_reused:
        return FidelityPlan(most, choice=choice)
    if choice.fidelity == "exact":
        return _less(most, plan(False, grain.piece_tokens), choice)
    if choice.repair == AUTO_REPAIR:
        return _less(most, without(most, survey.anew), choice)
    repair = replace(choice.repair, rest_tokens=choice.repair.rest_tokens or grain.rest_tokens)
    return _less(most, plan_repair(most, prompt, sources, repair, grain.min_move_tokens), choice)


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
