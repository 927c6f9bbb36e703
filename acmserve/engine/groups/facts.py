"""What a KV cache group keeps, and which of it a copy has to bring along.

    tokens      0 ............................ end - reach ............ end
    full        [ read by every query at `end` or behind ................ )
    window W                                  [ read: W - 1 tokens ...... )     what lies in front is never read again
    chunks of C                                    [ read: this chunk ... )     it begins at a multiple of C

A model has one block table for each group. Values, masks and sinks carry no position. So of a window group only the
tokens in front of `end` count that a query at `end` still reads, and the rest need not be copied.

Knows numbers only. Does not know blocks, layers or requests.

Decision: a kind is told by the exact class of vLLM's spec. A class derived from it may keep something else, and is
refused until it has a line in `KINDS`. Recurrent groups get theirs there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from acmserve.errors import MoveRefused

KINDS: Mapping[str, Callable[[Any], Mapping[str, int]]] = {
    "FullAttentionSpec": lambda spec: {},
    "MLAAttentionSpec": lambda spec: {},
    "SlidingWindowSpec": lambda spec: {"reach": spec.sliding_window - 1 + spec.extra_retained_tokens},
    "ChunkedLocalAttentionSpec": lambda spec: {
        "reach": spec.attention_chunk_size - 1,
        "chunk": spec.attention_chunk_size,
    },
}
"""Every kind of group whose KV is moved, by the class of vLLM's spec: what `GroupFacts` says of such a spec.

Full attention may carry the fields of another kind, and keeps all.
"""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """KV cache group `index` of the engine: `block_size` tokens in each block of its scheduler.

    `reach` is how many tokens in front of it a query reads, at most. None: all. With a `chunk` it reads none in front
    of the last multiple of it.
    """

    index: int
    block_size: int
    reach: int | None = None
    chunk: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether a query reads all tokens in front of it."""
        return self.reach is None

    def needed_from(self, end: int) -> int:
        """First token in front of `end` whose KV a query at `end` or behind it may read."""
        if self.chunk is not None:
            return end // self.chunk * self.chunk
        return 0 if self.reach is None else max(0, end - self.reach)

    def num_skipped_blocks(self, end: int) -> int:
        """Blocks at the start of a sequence that no query at `end` or behind it reads."""
        return self.needed_from(end) // self.block_size


@dataclass(frozen=True)
class KVGroups:
    """The groups of one model. `hash_block_size` is how many tokens one of vLLM's block hashes covers."""

    groups: tuple[GroupFacts, ...]
    hash_block_size: int

    @cached_property
    def full(self) -> tuple[GroupFacts, ...]:
        return tuple(group for group in self.groups if group.is_full)

    @cached_property
    def windows(self) -> tuple[GroupFacts, ...]:
        return tuple(group for group in self.groups if not group.is_full)

    @cached_property
    def is_lone(self) -> bool:
        """Whether one group of full attention is all that the model has."""
        return len(self.groups) == 1 and not self.windows

    @cached_property
    def leading(self) -> GroupFacts:
        """The group that tells whether a source is there at all: one of full attention, where the model has one."""
        return (self.full or self.groups)[0]

    @classmethod
    def single(cls, block_size: int) -> KVGroups:
        """One group of full attention."""
        return cls((GroupFacts(0, block_size),), block_size)

    @classmethod
    def of_engine(cls, specs: Sequence[Any], hash_block_size: int) -> KVGroups:
        """Those of vLLM's `kv_cache_spec`s. A kind that is not moved counts as full attention: nothing is copied."""
        try:
            return cls(read_groups(specs), hash_block_size)
        except MoveRefused:
            return cls.single(hash_block_size)


def read_groups(specs: Sequence[Any]) -> tuple[GroupFacts, ...]:
    """The groups of vLLM's `kv_cache_spec`s, in their order. Raises `MoveRefused` for a kind that is not moved."""
    found = []
    for index, spec in enumerate(specs):
        name = type(spec).__name__
        if name not in KINDS:
            raise MoveRefused(
                f"model: KV cache of kind {name}; full and latent attention and sliding windows are supported"
            )
        found.append(GroupFacts(index, spec.block_size, **KINDS[name](spec)))
    return tuple(found)
