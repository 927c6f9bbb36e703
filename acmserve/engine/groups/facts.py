"""What a KV cache group keeps, and which of it a copy has to bring along.

    tokens      0 ............................ end - reach ............ end
    full        [ read by every query at `end` or behind ................ )
    window W                                  [ read: W - 1 tokens ...... )     what lies in front is never read again
    chunks of C                                    [ read: this chunk ... )     it begins at a multiple of C
    recurrent                                                           | the state at `end`: one block holds it

A model has one block table for each group. Values, masks and sinks carry no position. So of a window group only those
tokens in front of `end` count that a query at `end` still reads. The rest need not be copied. A recurrent group has no
KV of tokens. States of gated delta nets and Mamba-2 are composed, not copied (`kernels/ops/recurrent.py`). That of a
short convolution is its last inputs. Behind a longer suffix those are the suffix's own, and are copied as they are.

Knows numbers only. Does not know blocks, layers or requests.

Decision: a kind is told by the exact class of vLLM's spec. A class derived from it may keep something else, and is
refused until it has a line in `KINDS`.

Decision: a backend may keep all keys in one head slot and all values in another. With two KV heads such a page has the
very shape of one with a key and a value for each head. So the spec is asked, since the shape cannot tell.

Decision: a recurrent kind is moved where its transition is recorded here, or where it has none: `RECURRENT_KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from acmserve.errors import MoveRefused
from acmserve.plan.rules.states import StateRules

RECURRENT_KINDS: Mapping[str, bool] = {"GDN_ATTN": True, "MAMBA2": True, "SHORT_CONV": False}
"""Every recurrent kind that is moved, by vLLM's name: whether a suffix leaves anything of the state in front of it."""
RECURRENT_WORDS = "gated delta nets, Mamba-2 and short convolutions"


def _recurrent(spec: Any) -> Mapping[str, Any]:
    """The inputs of a convolution, the first of the spec's tensors, and behind them a state, where there is one."""
    kind = getattr(spec.mamba_type, "name", str(spec.mamba_type))
    if kind not in RECURRENT_KINDS:
        raise MoveRefused(f"model: recurrent state of kind {kind}; of those, {RECURRENT_WORDS} are supported")
    if spec.mamba_cache_mode != "align" or spec.num_speculative_blocks:
        raise MoveRefused("model: recurrent states are moved where vLLM keeps one for each block, without drafts")
    return {"reach": 0, "mixed": min(spec.shapes[0]), "is_composed": RECURRENT_KINDS[kind]}


KINDS: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
    "FullAttentionSpec": lambda spec: {},
    "MLAAttentionSpec": lambda spec: {},
    "SlidingWindowSpec": lambda spec: {"reach": spec.sliding_window - 1 + spec.extra_retained_tokens},
    "ChunkedLocalAttentionSpec": lambda spec: {
        "reach": spec.attention_chunk_size - 1,
        "chunk": spec.attention_chunk_size,
    },
    "MambaSpec": _recurrent,
}
"""Every kind of group whose KV is moved, by the class of vLLM's spec: what `GroupFacts` says of such a spec.

Full attention may carry the fields of another kind, and keeps all.
"""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """KV cache group `index` of the engine: `block_size` tokens in each block of its scheduler.

    `reach` is how many tokens in front of it a query reads, at most. None: all. With a `chunk` it reads none in front
    of the last multiple of it. `mixed` is set for a recurrent group: a token's input has so many tokens in front mixed
    in, by a short convolution. Where it `is_composed`, the state at `end` depends on all tokens in front of it.
    """

    index: int
    block_size: int
    reach: int | None = None
    chunk: int | None = None
    mixed: int | None = None
    is_composed: bool = False

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
        return tuple(group for group in self.groups if not group.is_full and group.mixed is None)

    @cached_property
    def recurrent(self) -> tuple[GroupFacts, ...]:
        """Groups that keep a state where others keep the KV of tokens."""
        return tuple(group for group in self.groups if group.mixed is not None)

    @cached_property
    def composed(self) -> tuple[GroupFacts, ...]:
        """Those of them whose states are composed of others, and of transitions that were recorded."""
        return tuple(group for group in self.recurrent if group.is_composed)

    @cached_property
    def state_rules(self) -> StateRules | None:
        """Where a state may be kept, for moves. None without recurrent groups."""
        mixed = [group.mixed for group in self.recurrent if group.mixed is not None]
        return StateRules(self.recurrent[0].block_size, max(mixed)) if mixed else None

    @cached_property
    def is_lone(self) -> bool:
        """Whether one group of full attention is all that the model has."""
        return len(self.groups) == 1 and bool(self.full)

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
    found: list[GroupFacts] = []
    for index, spec in enumerate(specs):
        name = type(spec).__name__
        if name not in KINDS:
            raise MoveRefused(
                f"model: KV cache of kind {name}; full and latent attention, sliding windows, {RECURRENT_WORDS} are "
                f"supported"
            )
        if getattr(spec, "num_head_slots", None) is not None:
            raise MoveRefused("kv cache: keys and values in head slots of their own are not supported")
        found.append(GroupFacts(index, spec.block_size, **KINDS[name](spec)))
    if any(group.mixed is not None for group in found):
        _check_beside_states(found)
    return tuple(found)


def _check_beside_states(groups: Sequence[GroupFacts]) -> None:
    """A state stands where a block of full attention ends. Raises `MoveRefused` for a model with other ones."""
    if not any(group.is_full for group in groups) or any(g.reach is not None and g.mixed is None for g in groups):
        raise MoveRefused("model: recurrent states are moved beside full attention only")
    if len({group.block_size for group in groups}) > 1:
        raise MoveRefused("model: recurrent states are moved where all KV cache groups have blocks of one size")
