"""Plans for a drafter that looks ahead: each run of reused pieces ends early, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.plan.pieces import EditPlan, Keep, Move
from acmserve.plan.planner import plan_edit
from acmserve.plan.rules.lookahead import end_early
from acmserve.plan.source import ServedSequence, Tokens
from tests.plan.test_planner import edited


def reused(plan: EditPlan) -> set[int]:
    """The prompt's tokens that are kept by a source's name, or moved."""
    kept = range(plan.num_kept) if plan.keep and plan.keep.source is not None else ()
    return {*kept, *(token for move in plan.moves for token in range(move.dst_start, move.dst_end))}


@given(edited(), st.integers(1, 3))
def test_the_last_tokens_of_each_run_are_computed(
    case: tuple[Tokens, list[ServedSequence]], num_lookahead: int
) -> None:
    prompt, sources = case
    plan = plan_edit(prompt, sources, allow_moves=True, min_move_tokens=1)
    shorter = end_early(plan, num_lookahead)
    shorter.check(prompt, sources)
    assert {move.dst_start - move.src_start for move in shorter.moves} <= {
        m.dst_start - m.src_start for m in plan.moves
    }
    before, after = reused(plan), reused(shorter)
    assert after <= before
    ends = [plan.num_kept, *(move.dst_end for move in plan.moves)]
    assert all(any(0 < end - token <= num_lookahead for end in ends) for token in before - after), "far from any end"
    for token in before:
        if token + 1 not in before:
            assert not after & set(range(token + 1 - num_lookahead, token + 1)), "the drafter saw another token ahead"


FOLD = EditPlan(100, Keep(20, 0), (Move(25, 60, 30, 0), Move(55, 10, 9, 1)), num_left=2)


def test_a_fold() -> None:
    assert end_early(FOLD, 2) == EditPlan(100, Keep(18, 0), (Move(25, 60, 30, 0), Move(55, 10, 7, 1)), num_left=2)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (EditPlan(100, Keep(20, None)), EditPlan(100, Keep(20, None))),
        (EditPlan(100, Keep(3, 0)), EditPlan(100)),
        (EditPlan(100, Keep(20, 0), (Move(20, 30, 40, 0),)), EditPlan(100, Keep(20, 0), (Move(20, 30, 37, 0),))),
        (EditPlan(100, Keep(20, 0), (Move(20, 30, 3, 0),)), EditPlan(100, Keep(17, 0))),
    ],
    ids=["vLLM's own hit", "all of it", "side by side", "the neighbour is gone"],
)
def test_what_stands_at_the_edge(plan: EditPlan, expected: EditPlan) -> None:
    assert end_early(plan, 3) == expected


def test_without_a_drafter_the_plan_stays() -> None:
    assert end_early(FOLD, 0) is FOLD
    assert np.all(sorted(reused(FOLD)) == [*range(20), *range(25, 64)])
