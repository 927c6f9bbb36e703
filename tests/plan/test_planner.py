"""The edit plan as a property: whatever the edit, the plan covers the prompt and reuses nothing that differs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.engine.requests.request_plan import plan_segments
from acmserve.errors import IntegrityError
from acmserve.plan.lineage import LineageMark
from acmserve.plan.owner import Owner
from acmserve.plan.pieces import Compute, EditPlan, Keep, Move
from acmserve.plan.planner import plan_edit
from acmserve.plan.rules.rotations import MAX_ROTATIONS
from acmserve.plan.source import ServedSequence, Tokens

BLOCK_SIZE = 8


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


def source(values: Tokens, marks: tuple[LineageMark, ...] = ()) -> ServedSequence:
    hashes = tuple(values[: end + BLOCK_SIZE].tobytes() for end in range(0, len(values) - BLOCK_SIZE + 1, BLOCK_SIZE))
    return ServedSequence(values, BLOCK_SIZE, hashes, b"tail", marks)


texts = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(lambda values: tokens(*values))


@st.composite
def edited(draw: st.DrawFn) -> tuple[Tokens, list[ServedSequence]]:
    """A prompt glued together from pieces of the sources and new text."""
    sources = [source(text) for text in draw(st.lists(texts, min_size=1, max_size=3))]
    pieces = []
    for _ in range(draw(st.integers(1, 4))):
        origin = draw(st.sampled_from(sources)).tokens
        start = draw(st.integers(0, len(origin)))
        pieces += [origin[start : start + draw(st.integers(0, 60))], draw(texts)]
    return np.concatenate(pieces), sources


@given(edited(), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_plans_are_well_formed(case: tuple[Tokens, list[ServedSequence]], min_move_tokens: int) -> None:
    prompt, sources = case
    plan = plan_edit(prompt, sources, allow_moves=True, min_move_tokens=min_move_tokens)
    plan.check(prompt, sources)
    pieces = plan.pieces()
    assert isinstance(pieces[-1], Compute), "the last token is always computed"
    counts = [piece.num_tokens for piece in pieces]
    assert sum(counts) == len(prompt)
    assert min(counts) > 0
    assert all(move.num_tokens >= min_move_tokens for move in plan.moves)
    longest = max(_common_prefix(prompt[:-1], s.tokens) for s in sources)
    assert plan.num_kept == longest


@given(edited())
@settings(max_examples=100, deadline=None)
def test_exact_moves_nothing(case: tuple[Tokens, list[ServedSequence]]) -> None:
    prompt, sources = case
    plan = plan_edit(prompt, sources, allow_moves=False)
    assert plan.moves == ()
    assert plan.num_kept == max(_common_prefix(prompt[:-1], s.tokens) for s in sources)


def test_fold_with_marker() -> None:
    """The example of the module's drawing: keep, hole, move, compute."""
    old = np.arange(100, dtype=np.int32)
    prompt = np.concatenate([old[:30], tokens(900, 901, 902), old[60:], tokens(903, 904)])
    plan = plan_edit(prompt, [source(old)], allow_moves=True)
    assert plan.pieces() == (Keep(30, 0), Compute(30, 3), Move(33, 60, 40, 0), Compute(73, 2))
    assert plan.num_holes == 1


def test_short_matches_are_computed() -> None:
    old = np.arange(100, dtype=np.int32)
    prompt = np.concatenate([tokens(900), old[:31], tokens(901)])
    assert plan_edit(prompt, [source(old)], allow_moves=True, min_move_tokens=32).moves == ()
    assert len(plan_edit(prompt, [source(old)], allow_moves=True, min_move_tokens=31).moves) == 1


def test_exact_keeps_only_blocks_in_front_of_the_first_mark() -> None:
    old = np.arange(100, dtype=np.int32)
    moved = source(old, (LineageMark(21, b"key"),))
    assert moved.num_exact_tokens == 16
    assert plan_edit(old, [moved], allow_moves=False).num_kept == 16
    assert plan_edit(old, [moved], allow_moves=True).num_kept == 99


def test_tokens_moved_too_often_are_computed_anew() -> None:
    """Only these: what stands beside them moves, and so does what stays at its place, which rounds nothing."""
    old = np.arange(300, dtype=np.int32)
    worn = source(old, (LineageMark(100, b"a", 80, MAX_ROTATIONS), LineageMark(200, b"b", 50, MAX_ROTATIONS - 1)))
    prompt = np.concatenate([tokens(900), old, tokens(901)])
    assert plan_edit(prompt, [worn], allow_moves=True).moves == (Move(1, 0, 100, 0), Move(181, 180, 120, 0))
    in_place = np.concatenate([tokens(900), old[1:], tokens(901)])
    assert plan_edit(in_place, [worn], allow_moves=True).moves == (Move(1, 1, 299, 0),)
    assert plan_edit(np.append(old, tokens(901)), [worn], allow_moves=True).keep == Keep(300, 0)
    short_rest = plan_edit(prompt, [worn], allow_moves=True, min_move_tokens=101)
    assert short_rest.moves == (Move(181, 180, 120, 0),)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_no_key_is_turned_more_often_than_the_bound(cuts: list[int]) -> None:
    """A session that evicts from its head again and again, with the sources that the engine would record."""
    context = np.arange(1000, 1400, dtype=np.int32)
    history, turns = source(context), dict.fromkeys(context.tolist(), 0)
    for turn, cut in enumerate(cuts):
        prompt = np.concatenate([history.tokens[cut:], np.arange(cut + 1, dtype=np.int32) + 2000 + 50 * turn])
        plan = plan_edit(prompt, [history], allow_moves=True)
        moved = {t: turns[t] + 1 for m in plan.moves for t in prompt[m.dst_start : m.dst_end].tolist()}
        turns = {token: moved.get(token, 0) for token in prompt.tolist()}
        assert max(turns.values()) <= MAX_ROTATIONS
        _, marks = plan_segments(plan, (history,), Owner("s"))
        history = source(prompt, tuple(marks))
        assert all(history.num_rotations(i, i + 1) >= turns[t] for i, t in enumerate(prompt.tolist()))


def test_equal_prefixes_prefer_exact_kv() -> None:
    old = np.arange(100, dtype=np.int32)
    marked, exact = source(old, (LineageMark(21, b"key"),)), source(old)
    assert plan_edit(old, [marked, exact], allow_moves=True).keep == Keep(99, 1)
    assert plan_edit(old, [marked], allow_moves=True, num_cached=99).keep == Keep(99, None)


def test_a_wrong_plan_is_found_out() -> None:
    old = np.arange(100, dtype=np.int32)
    prompt = np.concatenate([old[:50], tokens(7)])
    sources = [source(old)]
    for broken in (
        EditPlan(51, Keep(51, 0)),
        EditPlan(51, Keep(20, 0), (Move(10, 10, 20, 0),)),
        EditPlan(51, Keep(20, 0), (Move(20, 21, 20, 0),)),
        EditPlan(51, None, (Move(0, 0, 51, 0),)),
    ):
        with pytest.raises(IntegrityError):
            broken.check(prompt, sources)


def _common_prefix(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    different = np.nonzero(a[:n] != b[:n])[0]
    return int(different[0]) if len(different) else n


def numbers(start: int, end: int) -> Tokens:
    return np.arange(start, end, dtype=np.int32)


def test_appended_text_is_computed_even_where_it_quotes_old_text() -> None:
    served = numbers(100, 400)
    quote = [served, tokens(1, 2), served[50:150], tokens(3)]
    assert plan_edit(np.concatenate(quote), [source(served)], allow_moves=True).moves == ()
    folded = [served[:100], tokens(9), served[200:], tokens(1, 2), served[50:150], tokens(3)]
    plan = plan_edit(np.concatenate(folded), [source(served)], allow_moves=True)
    assert plan.moves == (Move(101, 200, 100, 0),)


def test_a_paragraph_that_went_to_the_end_is_moved() -> None:
    served = numbers(100, 400)
    swapped = np.concatenate([served[:100], served[200:], served[100:200], tokens(3)])
    assert plan_edit(swapped, [source(served)], allow_moves=True).moves == (
        Move(100, 200, 100, 0),
        Move(200, 100, 100, 0),
    )


def test_an_answer_that_was_cut_short_still_ends_the_conversation() -> None:
    served = numbers(100, 400)
    prompt = np.concatenate([served[:100], tokens(9), served[200:290], tokens(1, 2), served[50:150], tokens(3)])
    assert plan_edit(prompt, [source(served)], allow_moves=True).moves == (Move(101, 200, 90, 0),)


def test_a_rewound_conversation_moves_out_of_the_longer_one() -> None:
    """A request that went back to an early point is a prefix of the older source, which is the one that counts."""
    older, rewound = source(numbers(100, 400)), source(numbers(100, 160))
    prompt = np.concatenate([numbers(100, 160), tokens(9), numbers(250, 400), tokens(3)])
    assert plan_edit(prompt, [rewound, older], allow_moves=True).moves == (Move(61, 150, 150, 1),)
