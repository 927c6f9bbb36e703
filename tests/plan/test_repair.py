"""Repair as a property: what it names is never moved, the rest of the plan stays, and the counts add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.engine.requests.request_plan import plan_segments
from acmserve.errors import InvalidRequest
from acmserve.plan.fidelity import RequestedFidelity, plan_wish
from acmserve.plan.match import common_prefix
from acmserve.plan.owner import Owner
from acmserve.plan.pieces import Compute, EditPlan, Keep, Move, Removed
from acmserve.plan.planner import plan_edit
from acmserve.plan.removed import find_removed
from acmserve.plan.repair import EVERYTHING, MAX_RANGES, MAX_RESTS, Repair, plan_repair
from acmserve.plan.source import ServedSequence, Tokens
from tests.plan.test_planner import edited, source, tokens

OLD = np.arange(1000, dtype=np.int32)
NEW = tokens(5000, 5001, 5002)
NOTHING = Repair(head_tokens=0)

counts = st.integers(0, 30)
spans = st.tuples(st.integers(0, 80), st.integers(1, 40)).map(lambda span: (span[0], span[0] + span[1]))
repairs = st.builds(Repair, counts, counts, st.booleans(), st.lists(spans, max_size=3).map(tuple))


def covered(plan: EditPlan) -> set[int]:
    return {token for move in plan.moves for token in range(move.dst_start, move.dst_end)}


def fold(*cuts: tuple[int, int]) -> Tokens:
    """OLD with a marker of three tokens in place of each cut, and a new message."""
    pieces, start = [], 0
    for number, (first, behind) in enumerate(cuts):
        pieces += [OLD[start:first], NEW + 10 * number + 100]
        start = behind
    return np.concatenate([*pieces, OLD[start:], NEW])


@given(edited(), repairs, st.integers(1, 10))
@settings(max_examples=300, deadline=None)
def test_a_repaired_plan_is_well_formed(
    case: tuple[Tokens, list[ServedSequence]], repair: Repair, min_move_tokens: int
) -> None:
    prompt, sources = case
    plan = plan_edit(prompt, sources, allow_moves=True, min_move_tokens=min_move_tokens)
    repaired = plan_repair(plan, prompt, sources, repair, min_move_tokens)
    repaired.check(prompt, sources)
    assert repaired.keep == plan.keep
    assert sum(piece.num_tokens for piece in repaired.pieces()) == len(prompt)
    assert all(move.num_tokens >= min_move_tokens for move in repaired.moves)
    assert covered(repaired) <= covered(plan)
    named = {token for start, end in repair.ranges for token in range(start, end)}
    for move in plan.moves:
        named |= set(range(move.dst_start, min(move.dst_end, move.dst_start + repair.head_tokens)))
        named |= set(range(max(move.dst_start, move.dst_end - repair.tail_tokens), move.dst_end))
    assert not covered(repaired) & named
    if not repair.echoes:
        bound = len(named & covered(plan)) + (min_move_tokens - 1) * (2 * len(plan.moves) + 2 * len(repair.ranges))
        assert len(covered(plan)) - len(covered(repaired)) <= bound, "more was computed than asked for"


@given(edited(), st.integers(1, 10))
@settings(max_examples=100, deadline=None)
def test_the_ends_of_the_dial(case: tuple[Tokens, list[ServedSequence]], min_move_tokens: int) -> None:
    """A plan without repair is that of `reuse`. Repair of everything computes all that is not kept."""
    prompt, sources = case
    plan = plan_edit(prompt, sources, allow_moves=True, min_move_tokens=min_move_tokens)
    assert plan_repair(plan, prompt, sources, NOTHING, min_move_tokens) == plan
    everything = plan_repair(plan, prompt, sources, EVERYTHING, min_move_tokens)
    assert everything.pieces()[plan.num_kept > 0 :] == (Compute(plan.num_kept, len(prompt) - plan.num_kept),)


@given(edited(), repairs)
@settings(max_examples=100, deadline=None)
def test_what_is_computed_for_fidelitys_sake_is_told(case: tuple[Tokens, list[ServedSequence]], repair: Repair) -> None:
    prompt, sources = case
    most = plan_wish(prompt, sources, RequestedFidelity("reuse"), min_move_tokens=4).plan
    planned = plan_wish(prompt, sources, RequestedFidelity("repair", repair), min_move_tokens=4)
    anew = [token for start, end in planned.anew for token in range(start, end)]
    assert sorted(anew) == sorted(covered(most) - covered(planned.plan))
    assert planned.choice is None


@given(edited())
@settings(max_examples=200, deadline=None)
def test_every_move_stands_behind_a_difference(case: tuple[Tokens, list[ServedSequence]]) -> None:
    """So every moved segment is inexact in general, and repair need not look for one that is not."""
    prompt, sources = case
    for move in plan_edit(prompt, sources, allow_moves=True, min_move_tokens=1).moves:
        assert common_prefix(prompt, sources[move.source].tokens) <= move.dst_start
        assert (move.dst_start, move.src_start) != (0, 0)


def test_a_fold_with_every_kind_of_repair() -> None:
    """The drawing of the module, with 60 tokens in the middle that repeat what was folded."""
    folded = OLD[100:160]
    old = np.concatenate([OLD[:300], OLD[300:500], folded, OLD[500:800]])
    prompt = np.concatenate([old[:50], NEW, old[300:], NEW])
    sources = [source(old)]
    plan = plan_edit(prompt, sources, allow_moves=True)
    assert plan.pieces() == (Keep(50, 0), Compute(50, 3), Move(53, 300, 560, 0), Compute(613, 3))
    assert plan.removed == (Removed(0, 50, 300),)
    repair = Repair(head_tokens=40, tail_tokens=30, echoes=True, ranges=((400, 420),))
    repaired = plan_repair(plan, prompt, sources, repair, 32)
    assert repaired.moves == (
        Move(93, 340, 160, 0),
        Move(315, 562, 85, 0),
        Move(420, 667, 163, 0),
    )
    assert replace(repaired, moves=()) == replace(plan, moves=())


def test_an_echo_of_text_that_came_later_is_none() -> None:
    """The first segment never saw what was folded behind it."""
    later = np.concatenate([OLD[800:815], OLD[200:220], OLD[815:830]])
    old = np.concatenate([OLD[:400], later, OLD[400:700]])
    prompt = np.concatenate([old[:50], NEW, old[100:400], NEW + 10, old[450:], NEW])
    sources = [source(old)]
    plan = plan_edit(prompt, sources, allow_moves=True)
    assert [removed.num_tokens for removed in plan.removed] == [50, 50]
    assert plan_repair(plan, prompt, sources, Repair(head_tokens=0, echoes=True), 32) == plan


def test_rests_shorter_than_a_piece_move_where_that_is_asked_for() -> None:
    """Pieces that the planner moves have 32 tokens or more. Eight are enough for what a repair leaves of one."""
    prompt = fold((100, 300))
    plan = plan_edit(prompt, (source(OLD),), allow_moves=True)
    (whole,) = plan.moves
    holes = tuple((start, start + 4) for start in range(whole.dst_start + 8, whole.dst_end - 20, 20))
    repair = Repair(head_tokens=0, ranges=holes)
    assert plan_repair(plan, prompt, (source(OLD),), repair, 32).moves == ()
    rests = plan_repair(plan, prompt, (source(OLD),), replace(repair, rest_tokens=8), 32).moves
    assert [rests[0].num_tokens, *{move.num_tokens for move in rests[1:-1]}] == [8, 16]
    assert len(rests) == len(holes) + 1


def test_the_number_of_rests_is_bounded() -> None:
    """Hostile text does not cut a prompt into thousands of copies: rests get longer, up to a whole piece."""
    old = np.arange(40_000, dtype=np.int32)
    prompt = np.concatenate([old[:100], NEW + 90_000, old[300:], NEW + 90_000])
    plan = plan_edit(prompt, (source(old),), allow_moves=True)
    ranges = tuple((start, start + 1) for start in range(1000, 38_000, 10))
    mixed = (*ranges, (500, 501), (600, 601))
    repaired = plan_repair(plan, prompt, (source(old),), Repair(0, ranges=mixed, rest_tokens=8), 32)
    assert 3 <= len(repaired.moves) <= MAX_RESTS
    assert max(move.dst_end for move in repaired.moves) == len(prompt) - len(NEW)


def test_the_head_has_exact_hashes_and_holes_behind_it_the_lineage() -> None:
    prompt = fold((100, 300), (600, 700))
    sources = (source(OLD),)
    planned = plan_wish(prompt, sources, RequestedFidelity("repair", Repair(head_tokens=50)))
    segments, marks = plan_segments(planned.plan, sources, Owner("s"))
    assert [(mark.position, mark.num_tokens, mark.num_removed) for mark in marks] == [(153, 250, 200), (456, 250, 300)]
    assert [(segment.dst_start, segment.dst_end) for segment in segments[1:]] == [(153, 403), (456, 706)]
    whole = plan_segments(plan_edit(prompt, sources, allow_moves=True), sources, Owner("s"))[1]
    assert not {mark.key for mark in marks} & {mark.key for mark in whole}, "another geometry is another lineage"


def test_text_of_another_source_is_not_removed() -> None:
    """A restore keeps the old branch and moves what was said since: what it stood behind is still there."""
    folded = fold((100, 300))
    later = np.concatenate([folded, np.arange(300, dtype=np.int32) + 7000])
    prompt = np.concatenate([OLD, later[len(folded) - len(NEW) :], NEW])
    plan = plan_edit(prompt, [source(later), source(OLD)], allow_moves=True)
    assert plan.keep == Keep(1000, 1)
    assert [(move.dst_start, move.num_tokens, move.source) for move in plan.moves] == [(1000, 303, 0)]
    assert plan.removed == (Removed(0, 100, 103),), "the marker alone is gone"


def test_text_behind_what_saw_it_is_removed_from_its_sight() -> None:
    """A copy of folded text in the kept suffix does not stand in front of it."""
    old = np.concatenate([OLD[:300], OLD[100:200], OLD[300:400]])
    prompt = np.concatenate([old[:100], NEW, old[200:], NEW])
    assert plan_edit(prompt, [source(old)], allow_moves=True).removed == (Removed(0, 100, 200),)


@given(edited())
@settings(max_examples=100, deadline=None)
def test_removed_text_lies_in_front_of_moves_and_in_none(case: tuple[Tokens, list[ServedSequence]]) -> None:
    prompt, sources = case
    moves = plan_edit(prompt, sources, allow_moves=True, min_move_tokens=4).moves
    removed = find_removed(prompt, sources, moves)
    positions = [(r.source, token) for r in removed for token in range(r.start, r.end)]
    assert len(set(positions)) == len(positions)
    moved = {(m.source, m.src_start + i) for m in moves for i in range(m.num_tokens)}
    assert not moved & set(positions)
    last = {index: max((m.src_start for m in moves if m.source == index), default=0) for index in range(len(sources))}
    assert all(r.end <= last[r.source] for r in removed)
    assert all(r.start >= common_prefix(prompt, sources[r.source].tokens) for r in removed)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"head_tokens": -1}, "head_tokens"),
        ({"tail_tokens": 2**31}, "tail_tokens"),
        ({"rest_tokens": 0}, "rest_tokens"),
        ({"ranges": ((0, 4), (5, 5))}, "ranges.1"),
        ({"ranges": ((-1, 4),)}, "ranges.0"),
        ({"ranges": ((0, 1),) * (MAX_RANGES + 1)}, "ranges"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Repair(**values)
    assert refused.value.field == field
