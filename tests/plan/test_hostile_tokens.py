"""Tokens are chosen by clients: none that anybody can choose makes the matcher, or a plan, take long."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import acmserve._native as _native
from acmserve.plan import match
from acmserve.plan.lineage import LineageMark, marks_in
from acmserve.plan.match import TokenMatch, find_matches
from acmserve.plan.pieces import EditPlan, Move, Removed
from acmserve.plan.planner import MAX_MOVES, plan_edit
from acmserve.plan.repair import MAX_RANGES, Repair, plan_repair
from acmserve.plan.source import ServedSequence

K, VOCABULARY, MAX_PROBES = 32, 50_000, 64
KNOWN_BASE, KNOWN_MIX = 0x9E3779B97F4A7C15, 0xFF51AFD7ED558CCD
"""A key that an attacker knows, as it was when it stood in the source."""

Tokens = NDArray[np.int32]


def crowding(length: int) -> Tokens:
    """Tokens each of whose grams goes to the same few slots under the known key: the next one is chosen for that."""
    num_bits = max(4, (2 * (length - K + 1) - 1).bit_length())
    base, mix, shift = np.uint64(KNOWN_BASE), np.uint64(KNOWN_MIX), np.uint64(64 - num_bits)
    leading = np.uint64(pow(KNOWN_BASE, K, 2**64))
    choices = np.arange(VOCABULARY, dtype=np.uint64)
    tokens = np.zeros(length, dtype=np.uint64)
    tokens[:K] = np.random.default_rng(1).integers(0, VOCABULARY, K, dtype=np.uint64)
    value = np.uint64(0)
    for token in tokens[:K]:
        value = value * base + token
    for at in range(K, length):
        hashes = value * base + choices - tokens[at - K] * leading
        slots = (hashes ^ hashes >> np.uint64(32)) * mix >> shift
        tokens[at] = int(slots.argmin())
        value = hashes[int(tokens[at])]
    return tokens.astype(np.int32)


@pytest.fixture(scope="module")
def hostile() -> Tokens:
    with np.errstate(over="ignore"):
        return crowding(3_000)


def test_tokens_that_crowd_under_a_known_key_are_spread_under_ours(hostile: Tokens) -> None:
    assert _native.num_probes([hostile], K, KNOWN_BASE, KNOWN_MIX) == MAX_PROBES, "they do not crowd"
    assert _native.num_probes([hostile], K, int(match.GRAM_BASE), match.SLOT_MIX) < MAX_PROBES


def test_the_key_is_drawn_for_each_process() -> None:
    assert int(match.GRAM_BASE) % 2 == 1 == match.SLOT_MIX % 2
    assert (int(match.GRAM_BASE), match.SLOT_MIX) != (KNOWN_BASE, KNOWN_MIX)


def test_they_are_matched_all_the_same(hostile: Tokens) -> None:
    prompt = np.concatenate([np.full(40, 7, dtype=np.int32), hostile])
    assert find_matches(prompt, [hostile], 0, len(prompt), K) == (TokenMatch(40, 0, 0, len(hostile)),)


def test_a_gram_without_a_place_costs_a_match_and_nothing_else(
    hostile: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even under the known key the search ends, and what it finds is true."""
    monkeypatch.setattr(match, "GRAM_BASE", np.uint64(KNOWN_BASE))
    monkeypatch.setattr(match, "SLOT_MIX", KNOWN_MIX)
    for found in find_matches(hostile, [hostile[::-1].copy(), hostile], 0, len(hostile), K):
        assert found.source == 1
        source = hostile[found.src_start : found.src_start + found.num_tokens]
        assert np.array_equal(source, hostile[found.dst_start : found.dst_start + found.num_tokens])


def test_of_many_small_matches_the_longest_are_moved() -> None:
    """A diffed file: every 34 tokens one is another."""
    source = np.random.default_rng(2).integers(0, VOCABULARY, 16_000, dtype=np.int32)
    prompt = source.copy()
    prompt[10::35] = VOCABULARY
    prompt[14_010:15_000:35] = source[14_010:15_000:35]
    sequence = ServedSequence(source, 16, tuple(bytes([i % 256]) for i in range(len(source) // 16)))
    plan = plan_edit(prompt, [sequence], allow_moves=True)
    plan.check(prompt, [sequence])
    assert (len(plan.moves), plan.num_left > 0) == (MAX_MOVES, True)
    assert max(move.num_tokens for move in plan.moves) > 900
    assert [move.dst_start for move in plan.moves] == sorted(move.dst_start for move in plan.moves)


def test_what_each_move_had_in_sight_is_counted_as_one_by_one() -> None:
    """One pass over what was removed and over the marks, however many moves there are."""
    rng = np.random.default_rng(3)
    marks = tuple(LineageMark(9 * i, b"", 5, int(rng.integers(4)), int(rng.integers(99))) for i in range(60))
    source = ServedSequence(np.arange(600, dtype=np.int32), 16, (), None, marks)
    removed = tuple(Removed(0, 7 * i, 7 * i + int(rng.integers(1, 7))) for i in range(70))
    moves = tuple(Move(600 + 7 * i, int(rng.integers(590)), int(rng.integers(1, 7)), 0) for i in range(80))
    counts = EditPlan(2_000, None, moves, removed).num_removed_before([source])
    for move, count in zip(moves, counts, strict=True):
        end = move.src_start + move.num_tokens
        earlier = max((mark.num_removed for mark in marks if mark.position < end), default=0)
        assert count == earlier + sum(r.num_tokens for r in removed if r.end <= move.src_start)
        over = [m for m in marks if m.position < end and move.src_start < m.position + m.num_tokens]
        assert list(source.marks_over(move.src_start, end)) == over


def test_ranges_of_a_repair_are_read_once_however_many_moves_there_are() -> None:
    """As many of both as there may be: what is computed is what the ranges name, and nothing else."""
    prompt = np.arange(40 * MAX_MOVES, dtype=np.int32)
    moves = tuple(Move(40 * i, 40 * i, 39, 0) for i in range(MAX_MOVES))
    ranges = tuple((5 * i, 5 * i + 1) for i in range(MAX_RANGES))
    plan = plan_repair(EditPlan(len(prompt), None, moves), prompt, (), Repair(0, ranges=ranges), min_move_tokens=1)
    moved = np.zeros(len(prompt), dtype=np.bool_)
    for move in plan.moves:
        moved[move.dst_start : move.dst_end] = True
    for start, end in ((move.dst_start, move.dst_end) for move in moves):
        assert np.array_equal(moved[start:end], np.arange(start, end) % 5 != 0)


@pytest.mark.parametrize("block", [0, 3, 1_023])
def test_the_marks_of_a_block_are_bisected(block: int) -> None:
    """What is compared grows with the logarithm of the marks, because blocks ask for theirs all the time."""

    class Counted(list[LineageMark]):
        num_read = 0

        def __getitem__(self, index: object) -> object:  # type: ignore[override]
            self.num_read += not isinstance(index, slice)
            return super().__getitem__(index)  # type: ignore[index]

    marks = Counted(LineageMark(16 * i + 3, bytes([i % 256, i // 256])) for i in range(1_024))
    assert marks_in(marks, 16 * block, 16 * block + 16) == (marks[block].key,)
    assert marks.num_read < 30
