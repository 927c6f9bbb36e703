"""Moves between places where a state may be kept, and the boundaries that are wanted for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acmserve.engine.requests.request_plan import why_less
from acmserve.plan.pieces import EditPlan, Keep, Move
from acmserve.plan.rules.boundaries import BoundaryRules, GroupTail, weigh_boundaries
from acmserve.plan.rules.states import StateRules, move_between_states

RULES = StateRules(16, 3)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 200))
def test_a_move_begins_and_ends_with_a_block_and_mixes_nothing_in(dst: int, src: int, num_tokens: int) -> None:
    plan = EditPlan(1000, Keep(dst, 0) if dst else None, (Move(dst, src, num_tokens, 0),))
    cut = move_between_states(plan, RULES)
    assert (cut.keep, cut.num_tokens) == (plan.keep, plan.num_tokens)
    places = [p for p in range(src + RULES.num_mixed, src + num_tokens + 1) if p % RULES.block_size == 0]
    if len(places) < 2:
        assert not cut.moves
        assert why_less(cut) == "too_short_for_states"
        return
    assert why_less(cut) is None
    (move,) = cut.moves
    assert (move.src_start, move.src_start + move.num_tokens) == (places[0], places[-1])
    assert move.dst_start - move.src_start == dst - src
    assert move_between_states(plan, None) is plan


def test_a_state_is_wanted_on_both_sides_of_a_piece() -> None:
    tails = (GroupTail(16, 1),)
    pieces = [(40, 60), (70, 80), (90, 250)]
    assert weigh_boundaries(pieces, 200, BoundaryRules(16, 0, tails, 1, True)).keys() == {32, 64, 80}
    moved = weigh_boundaries(pieces, 200, BoundaryRules(16, 0, tails, 1, True, RULES))
    assert moved == {32: 20, 64: 20 + 10, 96: 10, 80: 160}
