"""Moves between places where a state may be kept, and the boundaries that are wanted for them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acmserve.engine.requests.request_plan import why_less
from acmserve.plan.pieces import EditPlan, Keep, Move
from acmserve.plan.rules.boundaries import BoundaryRules, GroupTail, weigh_boundaries
from acmserve.plan.rules.states import StateRules, longest_answers, move_between_states
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


def test_the_longest_answers_have_their_states() -> None:
    """An answer is as long as it is to the next kept state. Behind the last one nobody knows."""
    answers = [(10, 15), (30, 80), (90, 95), (200, 240)]
    states = tuple(
        KeptState(place, b"%d" % place, is_before_answer=is_front)
        for pair in answers
        for place, is_front in zip(pair, (True, False), strict=True)
    )

    def fronts(most: int, of: tuple[KeptState, ...] = states) -> list[int]:
        kept = longest_answers(of, most)
        assert [state for state in kept if not state.is_before_answer] == [s for s in of if not s.is_before_answer]
        return [state.num_tokens for state in kept if state.is_before_answer]

    assert fronts(4) == fronts(9) == [10, 30, 90, 200]
    assert fronts(3) == [30, 90, 200], "of equal ones the later stays"
    assert (fronts(2), fronts(1), fronts(0)) == ([30, 200], [30], [])
    assert fronts(1, states[:-1]) == [200]
