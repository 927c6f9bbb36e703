"""Moves between places where a state may be kept, and the boundaries that are wanted for them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acmserve.engine.requests.request_plan import why_less
from acmserve.plan.pieces import EditPlan, Keep, Move
from acmserve.plan.rules.boundaries import BoundaryRules, GroupTail, weigh_boundaries
from acmserve.plan.rules.states import StateRules, move_between_states
from acmserve.plan.source import KeptState, ServedSequence

RULES = StateRules(16, 3)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 200), st.sets(st.integers(1, 400), max_size=4))
def test_a_move_goes_from_a_state_to_a_state_and_mixes_nothing_in(
    dst: int, src: int, num_tokens: int, ends: set[int]
) -> None:
    """It begins with a block, or where a turn of its source ended, and ends behind one, or where a turn ended."""
    kept = tuple(KeptState(end, b"%d" % end) for end in sorted(ends))
    source = ServedSequence(np.zeros(400, dtype=np.int32), 16, (), states=kept)
    plan = EditPlan(1000, Keep(dst, 0) if dst else None, (Move(dst, src, num_tokens, 0),))
    cut = move_between_states(plan, (source,), RULES)
    assert (cut.keep, cut.num_tokens) == (plan.keep, plan.num_tokens)
    places = [p for p in range(src + RULES.num_mixed, src + num_tokens + 1) if p % RULES.block_size == 0 or p in ends]
    last = max((p for p in range(src + num_tokens + 1) if p % RULES.block_size == 0 or p in ends), default=0)
    if not places or last <= places[0]:
        assert not cut.moves
        assert why_less(cut) == "too_short_for_states"
        return
    assert why_less(cut) is None
    (move,) = cut.moves
    assert (move.src_start, move.src_start + move.num_tokens) == (places[0], last)
    assert move.dst_start - move.src_start == dst - src
    assert move_between_states(plan, (source,), None) is plan


def test_a_state_is_wanted_on_both_sides_of_a_piece() -> None:
    tails = (GroupTail(16, 1),)
    pieces = [(40, 60), (70, 80), (90, 250)]
    assert weigh_boundaries(pieces, 200, BoundaryRules(16, 0, tails, 1, True)).keys() == {32, 64, 80}
    moved = weigh_boundaries(pieces, 200, BoundaryRules(16, 0, tails, 1, True, RULES))
    assert moved == {32: 20, 64: 20 + 10, 96: 10, 80: 160}
