"""The edit plan as a property: whatever the edit, the plan covers the prompt and reuses nothing that differs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.edit.lineage import Mark
from acmserve.edit.plan import Compute, EditPlan, Keep, Move, plan_edit
from acmserve.edit.source import Source, Tokens
from acmserve.errors import IntegrityError

BLOCK_SIZE = 8


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


def source(values: Tokens, marks: tuple[Mark, ...] = ()) -> Source:
    hashes = tuple(values[: end + BLOCK_SIZE].tobytes() for end in range(0, len(values) - BLOCK_SIZE + 1, BLOCK_SIZE))
    return Source(values, BLOCK_SIZE, hashes, b"tail", marks)


texts = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(lambda values: tokens(*values))


@st.composite
def edited(draw: st.DrawFn) -> tuple[Tokens, list[Source]]:
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
def test_plans_are_well_formed(case: tuple[Tokens, list[Source]], min_move_tokens: int) -> None:
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
def test_exact_moves_nothing(case: tuple[Tokens, list[Source]]) -> None:
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
    moved = source(old, (Mark(21, b"key"),))
    assert moved.num_exact_tokens == 16
    assert plan_edit(old, [moved], allow_moves=False).num_kept == 16
    assert plan_edit(old, [moved], allow_moves=True).num_kept == 99


def test_equal_prefixes_prefer_exact_kv() -> None:
    old = np.arange(100, dtype=np.int32)
    marked, exact = source(old, (Mark(21, b"key"),)), source(old)
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
