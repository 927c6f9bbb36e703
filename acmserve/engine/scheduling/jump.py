"""A jump: adjacent source ranges, whose copies carry the computed position of one request forward in one step.

    prompt   ... computed )[ run 0 ........)[ run 1 ....) computed again ...
                           start            |           end
             source 0  [..block..|..block..|..block..]  |      a run is one segment, or as much of it as is cached
             source 1                  [..block..|..block..]

A jump is the copying counterpart of a prefill chunk. Pure: asks a lookup for blocks, takes no references, changes
nothing. A run ends at the first block that is no longer cached. What lies behind it is asked for again when the
scheduler gets there.

Decision: a jump has at most `MAX_BLOCKS` blocks. The scheduler takes microseconds for each, and everybody waits for it.
A longer range takes several steps, each of which computes one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from acmserve.engine.requests.receipt import ReceiptEntry
from acmserve.engine.requests.session_request import ReusableRange, SessionRequest
from acmserve.engine.worker.copies import KVCopy

MAX_BLOCKS = 1024
"""Source blocks of one step: 16,384 tokens in blocks of 16. The scheduler's thread takes some 5 ms for them."""


class Block(Protocol):
    """What a jump needs to know of vLLM's `KVCacheBlock`."""

    block_id: int
    ref_cnt: int


Lookup = Callable[[bytes], Block | None]


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Prompt tokens `[start, end)` from one source. `blocks` hold the source tokens, first to last."""

    segment: ReusableRange
    start: int
    end: int
    blocks: tuple[Block, ...]

    @property
    def src_start(self) -> int:
        return self.segment.src_at(self.start)

    def pieces(self, block_size: int) -> Iterator[tuple[int, int, int]]:
        """(block id, first source token, token behind the last) of every block that the run reads."""
        src_end = self.src_start + self.end - self.start
        begin = self.src_start // block_size * block_size
        for block in self.blocks:
            yield block.block_id, max(begin, self.src_start), min(begin + block_size, src_end)
            begin += block_size


@dataclass(frozen=True, slots=True)
class Jump:
    """Adjacent runs, never empty. The computed position leaps from `start` to `end`."""

    runs: tuple[BlockRun, ...]

    @property
    def start(self) -> int:
        return self.runs[0].start

    @property
    def end(self) -> int:
        return self.runs[-1].end

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for run in self.runs for block in run.blocks)

    def entries(self) -> list[ReceiptEntry]:
        """The jump as entries of the request's receipt."""
        return [ReceiptEntry(run.start, run.end, run.segment.origin, run.src_start) for run in self.runs]


def plan_jump(request: SessionRequest, position: int, lookup: Lookup) -> Jump | None:
    """The longest jump from `position` whose source blocks are all cached. None when the first is not.

    It ends behind `MAX_BLOCKS` blocks.
    """
    runs: list[BlockRun] = []
    num_left = MAX_BLOCKS
    while num_left and (segment := request.segment_at(position)) is not None:
        run = _plan_run(segment, position, lookup, num_left)
        if run is None:
            break
        runs.append(run)
        num_left -= len(run.blocks)
        position = run.end
        if position < segment.dst_end:
            break
    return Jump(tuple(runs)) if runs else None


def plan_trimmed(jump: Jump, position: int, block_size: int) -> Jump | None:
    """`jump` without what lies before `position`. None when nothing remains."""
    runs = []
    for run in jump.runs:
        if run.end <= position:
            continue
        start = max(run.start, position)
        num_skipped = run.segment.src_at(start) // block_size - run.src_start // block_size
        runs.append(BlockRun(run.segment, start, run.end, run.blocks[num_skipped:]))
    return Jump(tuple(runs)) if runs else None


def is_available(segment: ReusableRange, position: int, lookup: Lookup) -> bool:
    """Whether the source block is cached that holds the KV for prompt token `position`."""
    key = segment.source.block_key(segment.src_at(position) // segment.source.block_size)
    return key is not None and lookup(key) is not None


def next_available(segment: ReusableRange, position: int, lookup: Lookup) -> int:
    """First token of `segment` from `position` on, at a source block boundary, whose block is cached. Else its end."""
    bs = segment.source.block_size
    for index in range(segment.src_at(position) // bs, (segment.src_at(segment.dst_end) - 1) // bs + 1):
        key = segment.source.block_key(index)
        if key is not None and lookup(key) is not None:
            return max(position, segment.dst_start + index * bs - segment.src_start)
    return segment.dst_end


def plan_copies(jump: Jump, request_id: str, dst_block_ids: list[int], block_size: int) -> list[KVCopy]:
    """The copies that carry `jump` out. `dst_block_ids` is the request's whole block table."""
    copies = []
    for run in jump.runs:
        first, last = run.start // block_size, (run.end - 1) // block_size
        copies.append(
            KVCopy(
                request_id=request_id,
                src_start=run.src_start,
                dst_start=run.start,
                num_tokens=run.end - run.start,
                src_block_ids=tuple(block.block_id for block in run.blocks),
                dst_block_ids=tuple(dst_block_ids[first : last + 1]),
            )
        )
    return copies


def _plan_run(segment: ReusableRange, position: int, lookup: Lookup, max_blocks: int) -> BlockRun | None:
    bs = segment.source.block_size
    src_start, src_end = segment.src_at(position), segment.src_at(segment.dst_end)
    src_end = min(src_end, (src_start // bs + max_blocks) * bs)
    blocks: list[Block] = []
    for index in range(src_start // bs, (src_end - 1) // bs + 1):
        key = segment.source.block_key(index)
        block = lookup(key) if key is not None else None
        if block is None:
            src_end = index * bs
            break
        blocks.append(block)
    if not blocks:
        return None
    return BlockRun(segment, position, position + src_end - src_start, tuple(blocks))
