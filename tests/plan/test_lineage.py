"""Lineage keys: equal only for the same move of the same KV by the same owner."""

from __future__ import annotations

import numpy as np

from acmserve.plan.lineage import LineageMark, digest, marks_in, move_key, order_of
from acmserve.plan.owner import Owner
from acmserve.plan.source import ServedSequence, tail_digest

TOKENS = np.arange(40, dtype=np.int32)
HASHES = (b"h0", b"h1")


def test_every_part_of_a_move_changes_its_key() -> None:
    keys = {
        move_key(Owner("s"), b"source", 10, 20, 30),
        move_key(Owner("t"), b"source", 10, 20, 30),
        move_key(Owner("s", "salt"), b"source", 10, 20, 30),
        move_key(Owner("s"), b"other", 10, 20, 30),
        move_key(Owner("s"), b"source", 11, 20, 30),
        move_key(Owner("s"), b"source", 10, 21, 30),
        move_key(Owner("s"), b"source", 10, 20, 31),
    }
    assert len(keys) == 7
    assert move_key(Owner("s"), b"source", 10, 20, 30) in keys


def test_digest_keeps_its_parts_apart() -> None:
    assert digest(b"ab", b"c") != digest(b"a", b"bc")


def test_marks_in_a_range_come_in_order() -> None:
    marks = sorted([LineageMark(30, b"c"), LineageMark(10, b"a"), LineageMark(20, b"b")], key=order_of)
    assert marks_in(marks, 10, 30) == (b"a", b"b")


def test_a_source_with_another_lineage_has_another_digest() -> None:
    plain = ServedSequence(TOKENS, 16, HASHES)
    moved = ServedSequence(TOKENS, 16, HASHES, marks=(LineageMark(33, b"key"),))
    assert plain.digest_at(40) != moved.digest_at(40)
    assert plain.digest_at(33) == moved.digest_at(33)
    assert plain.digest_at(32) != plain.digest_at(33)


def test_block_keys_end_with_the_tail() -> None:
    source = ServedSequence(TOKENS, 16, HASHES, tail_key=b"tail")
    assert [source.block_key(i) for i in range(4)] == [b"h0", b"h1", b"tail", None]
    for first in range(5):
        for end in range(first, 5):
            keys = [source.block_key(i) for i in range(first, end)]
            assert source.block_keys(first, end) == [key for key in keys if key is not None]


def test_a_longer_sequence_of_the_same_lineage_extends_a_source() -> None:
    short = ServedSequence(TOKENS[:32], 16, HASHES)
    assert ServedSequence(TOKENS, 16, HASHES).extends(short)
    assert not short.extends(ServedSequence(TOKENS, 16, HASHES))
    assert not ServedSequence(TOKENS, 16, HASHES, marks=(LineageMark(20, b"key"),)).extends(short)
    assert not ServedSequence(TOKENS[::-1].copy(), 16, HASHES).extends(short)


def test_tail_keys_are_never_block_hashes() -> None:
    """They are tagged, and every part of a tail changes its key."""
    keys = {
        tail_digest(b"h1", TOKENS[32:], ()),
        tail_digest(b"h1", TOKENS[32:], (b"key",)),
        tail_digest(b"h0", TOKENS[32:], ()),
        tail_digest(b"h1", TOKENS[31:39], ()),
        digest(b"h1", TOKENS[32:].tobytes(), ()),
    }
    assert len(keys) == 5
