"""The pieces of a jump, as data: what is read of the source, in every KV cache group.

    run        prompt tokens that one segment gives, in all groups together
    read       the blocks of one group that hold their KV
    state      the blocks of one recurrent group that its state is composed of

Knows blocks by their number. Does not know where they are looked up, or what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from acmserve.engine.groups.facts import GroupFacts
from acmserve.engine.requests.receipt import KVOrigin, ReceiptEntry
from acmserve.engine.requests.session_request import ReusableRange
from acmserve.plan.source import ServedSequence


class Block(Protocol):
    """What a jump needs to know of vLLM's `KVCacheBlock`."""

    block_id: int
    ref_cnt: int


Lookup = Callable[[bytes, int], Block | None]
"""(cache key, group) -> the block that is cached under it."""


@dataclass(frozen=True, slots=True)
class TransitionPath:
    """Transitions over adjacent parts of a source, first to last, by number. Their product has at most this norm."""

    numbers: tuple[int, ...]
    norm: float


FindPath = Callable[[ServedSequence, int, int], TransitionPath | None]
"""(source, start, end) -> the recorded transitions over these tokens of it."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Prompt tokens `[start, end)` from one source. `blocks` of `group` hold the source tokens, first to last."""

    segment: ReusableRange
    start: int
    end: int
    blocks: tuple[Block, ...]
    group: GroupFacts

    @property
    def src_start(self) -> int:
        return self.segment.src_at(self.start)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """(block id, first source token, token behind the last) of every block that the run reads."""
        size = self.group.block_size
        src_end = self.src_start + self.end - self.start
        begin = self.src_start // size * size
        for block in self.blocks:
            yield block.block_id, max(begin, self.src_start), min(begin + size, src_end)
            begin += size

    def cut(self, start: int, end: int) -> BlockRun | None:
        """The part of the run in `[start, end)`. None where there is none."""
        start, end = max(start, self.start), min(end, self.end)
        if (start, end) == (self.start, self.end):
            return self
        if start >= end:
            return None
        size, first = self.group.block_size, self.src_start // self.group.block_size
        begin, last = self.segment.src_at(start) // size - first, (self.segment.src_at(end) - 1) // size - first
        return BlockRun(self.segment, start, end, self.blocks[begin : last + 1], self.group)


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Prompt tokens `[start, end)` of one segment: what all groups together take from its source."""

    segment: ReusableRange
    start: int
    end: int

    @property
    def src_start(self) -> int:
        return self.segment.src_at(self.start)


@dataclass(frozen=True, slots=True)
class StateRead:
    """The states that one recurrent group needs for a jump, each a block.

    `before` and `after` are the source's, where the jump begins and ends there. `there` is the request's own, where the
    jump begins. It is known once the request stands there. A group that is not composed needs no `before`. Where the
    jump is over a prefix of the request's own, no group does, and none needs `there`.
    """

    group: GroupFacts
    before: Block | None
    after: Block
    there: Block | None = None


@dataclass(frozen=True, slots=True)
class Jump:
    """Runs in order, never empty. `reads` are by group.

    The computed position leaps from `start` to `end` where the runs are adjacent. Else holes lie between them, or in
    front of the first one, behind `begin`. Those are computed in the same step, behind the copies:

        position    begin [ hole )[ run )[ hole )[ run ) end [ what follows .. )
        vLLM        begin [ run )[ run ) landing [ hole )[ hole )[ what follows .. )      both end alike

    On a model with recurrent groups there is one run. `states` are by group, and `path` leads from `before` to `after`.
    Over a kept prefix there is no path.
    """

    runs: tuple[SegmentRun, ...]
    reads: tuple[BlockRun, ...]
    states: tuple[StateRead, ...] = ()
    path: TransitionPath | None = None
    begin: int | None = None

    @property
    def start(self) -> int:
        return self.runs[0].start

    @property
    def end(self) -> int:
        return self.runs[-1].end

    @property
    def needs_own_states(self) -> bool:
        """Whether states are composed with the request's own. Behind a kept prefix they are copied."""
        return bool(self.states) and self.runs[0].segment.origin is KVOrigin.MOVED

    @property
    def stands_at(self) -> int:
        """Where the request stands: at the first run, or at the hole in front of it."""
        return self.start if self.begin is None else self.begin

    @property
    def landing(self) -> int:
        """Computed tokens that vLLM counts behind the leap: those before it, and the copied ones."""
        return self.stands_at + sum(run.end - run.start for run in self.runs)

    @property
    def num_in_holes(self) -> int:
        """Tokens in front of `end` that the step has to compute."""
        return self.end - self.landing

    @property
    def blocks(self) -> tuple[Block, ...]:
        states = (block for read in self.states for block in (read.before, read.after, read.there) if block is not None)
        return (*(block for run in self.reads for block in run.blocks), *states)

    def begun_at(self, there: Sequence[Block]) -> Jump:
        """This jump, with the request's own state of every recurrent group where it begins."""
        states = (replace(read, there=block) for read, block in zip(self.states, there, strict=True))
        return replace(self, states=tuple(states))

    def entries(self) -> list[ReceiptEntry]:
        """The jump as entries of the request's receipt."""
        return [ReceiptEntry(run.start, run.end, run.segment.origin, run.src_start) for run in self.runs]

    def copied_from(self, group: GroupFacts) -> int:
        """First token that the jump brings along for `group`."""
        return max(self.start, group.needed_from(self.end))
