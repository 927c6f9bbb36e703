"""Lineage: the identity of KV that was moved rather than computed in its new context.

A block hash normally says "these tokens after those tokens". Moved KV breaks that promise: it still carries what it
attended to at its old place. So the first block that a move touches gets an extra hash key, a `LineageMark`. Hashes are
chained, so every later block inherits it. A request that asks for exact tokens never computes that key and therefore
never meets the block.

The key holds the session, the salt and the adapter although the chain already separates the last two. Moved KV answers
nobody but the session that made the edit, even when somebody else makes the very same edit of the very same text.

This module knows bytes and positions, nothing of vLLM.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from acmserve.plan.owner import Owner


@dataclass(frozen=True, slots=True)
class LineageMark:
    """Moved KV begins at token `position` of a sequence. `key` names where it came from.

    At most `num_tokens` tokens from there on were moved, and their keys were rounded again by at most `num_rotations`
    moves. Their KV had at most `num_removed` tokens in sight that were taken away since, by this move or those before
    it.
    """

    position: int
    key: bytes
    num_tokens: int = field(default=0, compare=False)
    num_rotations: int = field(default=0, compare=False)
    num_removed: int = field(default=0, compare=False)


def digest(*parts: object) -> bytes:
    """SHA-256 over length-prefixed parts (bytes as they are, everything else through `repr`)."""
    h = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.digest()


def move_key(owner: Owner, source_digest: bytes, dst_start: int, src_start: int, num_tokens: int) -> bytes:
    """Key of one move: who moved it, which KV, and the geometry.

    `source_digest` identifies the source sequence up to the end of the moved range (`ServedSequence.digest_at`). It
    includes the lineage, so an edit of an edit gets a key of its own.
    """
    return digest(b"acm-move", owner, source_digest, dst_start, src_start, num_tokens)


def order_of(mark: LineageMark) -> tuple[int, bytes]:
    """By what the marks of a sequence are sorted."""
    return mark.position, mark.key


def position_of(mark: LineageMark) -> int:
    """Where moved KV begins."""
    return mark.position


def marks_in(marks: Sequence[LineageMark], start: int, end: int) -> tuple[bytes, ...]:
    """Keys of the marks whose position lies in `[start, end)`, in order. `marks` are sorted by `order_of`.

    A block is asked for its marks each time it is hashed, so two bisections it is, however many marks there are.
    """
    first = bisect_left(marks, (start, b""), key=order_of)
    behind = bisect_left(marks, (end, b""), key=order_of)
    return tuple(mark.key for mark in marks[first:behind])
