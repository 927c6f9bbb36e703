"""A source: a token sequence that a session served before, and how to find its KV again.

A source holds hashes, never blocks. Whether the KV still exists is asked of the engine's prefix cache at the moment of
use. Until then the blocks are ordinary eviction candidates, and retaining a source costs no KV capacity.

    tokens       [0 ......................................... num_tokens)
    block_hashes  h0      h1      h2      ...   h(n-1)                      n = num_tokens // block_size whole blocks
    tail_key                                             the partial block  None when there is none, or it was not kept
    states                     ^ an answer began,   ^    recurrent layers have their state there, under a key of its own
                                 or a turn ended
    marks                  ^ moved KV begins             lineage, see plan/lineage.py
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from acmserve.plan.lineage import LineageMark, digest, marks_in, position_of

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeptState:
    """The states of all recurrent layers behind `num_tokens` tokens were kept under `key`. They may be gone by now.

    They stand where a turn ended. Or an answer begins there: `is_before_answer`.
    """

    num_tokens: int
    key: bytes
    is_before_answer: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ServedSequence:
    """One served sequence, cut to the tokens whose KV was really computed.

    `tokens` is int32 of shape [num_tokens]. `block_hashes[i]` is the engine's chain hash of block i. `states` are in
    order. That behind the last token stands under `tail_key`, as the partial block of attention does.
    """

    tokens: Tokens
    block_size: int
    block_hashes: tuple[bytes, ...]
    tail_key: bytes | None = None
    marks: tuple[LineageMark, ...] = field(default=())
    states: tuple[KeptState, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def kept_keys(self) -> tuple[bytes, ...]:
        """The keys under which something is kept that no chain hash names: the partial block, and states."""
        keys = dict.fromkeys(state.key for state in self.states)
        return tuple(keys if self.tail_key is None else keys | {self.tail_key: None})

    @property
    def num_exact_tokens(self) -> int:
        """Tokens before the first block that carries a lineage key: KV that an `exact` request may read."""
        if not self.marks:
            return self.num_tokens
        first = min(mark.position for mark in self.marks)
        return first // self.block_size * self.block_size

    def next_state(self, position: int) -> KeptState | None:
        """The first state that was kept at `position` or behind it."""
        index = bisect_left(self.states, position, key=attrgetter("num_tokens"))
        return self.states[index] if index < len(self.states) else None

    def last_state(self, position: int) -> KeptState | None:
        """The last state that was kept at `position` or in front of it."""
        index = bisect_right(self.states, position, key=attrgetter("num_tokens"))
        return self.states[index - 1] if index else None

    def state_key(self, position: int) -> bytes | None:
        """The key of the states behind `position` tokens: that of the block which ends there, or of a kept state."""
        if position and not position % self.block_size:
            return self.block_key(position // self.block_size - 1)
        kept = self.next_state(position)
        return kept.key if kept is not None and kept.num_tokens == position else None

    def num_rotations(self, start: int, end: int) -> int:
        """Most moves that the keys of any token in `[start, end)` went through."""
        return max((mark.num_rotations for mark in self.marks_over(start, end)), default=0)

    def marks_over(self, start: int, end: int) -> Sequence[LineageMark]:
        """The marks whose moved tokens overlap `[start, end)`. Bisected: marks are sorted, their tokens disjoint."""
        first = bisect_right(self.marks, start, key=lambda mark: mark.position + mark.num_tokens)
        return self.marks[first : bisect_left(self.marks, end, key=position_of)]

    def num_removed(self, end: int) -> int:
        """Most tokens that KV of tokens `[0, end)` had in sight and has no more. What saw moved KV counts as moved."""
        return max((mark.num_removed for mark in self.marks if mark.position < end), default=0)

    @property
    def num_bytes(self) -> int:
        """Host memory that this record holds."""
        return self.tokens.nbytes + 72 * (len(self.block_hashes) + len(self.marks) + len(self.states) + 1)

    def block_key(self, index: int, block_size: int | None = None) -> bytes | None:
        """The cache key of block `index`: its chain hash, the tail key for the partial block, else None.

        Blocks may be larger than what one hash covers. The last hash in a block is that of all tokens up to its end.

            hashes          h0      h1      h2      h3      h4         `self.block_size` tokens each
            larger blocks   |      h1       |      h3       | tail
        """
        num_hashes = 1 if block_size is None else block_size // self.block_size
        last = (index + 1) * num_hashes - 1
        if last < len(self.block_hashes):
            return self.block_hashes[last]
        if index == len(self.block_hashes) // num_hashes:
            return self.tail_key
        return None

    def block_keys(self, first: int, end: int, block_size: int | None = None) -> list[bytes]:
        """The cache keys of blocks `[first, end)`, of those that have one. None but the last may lack one."""
        num_hashes = 1 if block_size is None else block_size // self.block_size
        whole = self.block_hashes[(first + 1) * num_hashes - 1 : end * num_hashes : num_hashes]
        has_tail = first <= len(self.block_hashes) // num_hashes < end
        return [*whole, self.tail_key] if self.tail_key and has_tail else list(whole)

    def digest_at(self, end: int) -> bytes:
        """Identity of tokens `[0, end)` with their lineage: the chain hash before `end`, and what follows it."""
        num_whole = min(end // self.block_size, len(self.block_hashes))
        start = num_whole * self.block_size
        chain = self.block_hashes[num_whole - 1] if num_whole else b""
        rest = self.tokens[start:end].tobytes()
        return digest(chain, rest, marks_in(self.marks, start, end))

    def extends(self, other: ServedSequence) -> bool:
        """Whether `other` is a prefix of this source with the same lineage, and so has nothing of its own to offer."""
        n = other.num_tokens
        return (
            self.num_tokens >= n
            and tuple(m for m in self.marks if m.position < n) == other.marks
            and bool(np.array_equal(self.tokens[:n], other.tokens))
        )


def tail_digest(chain_hash: bytes, tail_tokens: Tokens, mark_keys: tuple[bytes, ...]) -> bytes:
    """Cache key of a partial block. Tagged, so it can never equal the hash of a whole block."""
    return digest(b"acm-tail", chain_hash, tail_tokens.tobytes(), mark_keys)
