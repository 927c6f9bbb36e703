"""What a move reads and writes: runs of consecutive tokens, from blocks to blocks, all turned by one position delta.

A slot is `block_id * block_size + offset`. The checks here hold for every implementation of `move`, so that none of
them needs its own. They look at blocks, never at tokens: a run of 131,072 tokens is 8,192 blocks of 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acmserve.errors import IntegrityError


class BlockSpan(NamedTuple):
    """`num_tokens` tokens one behind the other. The first one sits at `offset` in the first block.

        block_ids   | ...[offset ======|=================|====) ..... |

    The list has the blocks of these tokens and no more.
    """

    block_ids: Sequence[int]
    offset: int
    num_tokens: int

    def slots(self, block_size: int) -> NDArray[np.int64]:
        """Slots, int64 `[num_tokens]`."""
        first = np.asarray(self.block_ids, dtype=np.int64)[:, None] * block_size
        return (first + np.arange(block_size, dtype=np.int64)).reshape(-1)[self.offset : self.offset + self.num_tokens]


@dataclass(frozen=True, slots=True)
class MoveRun:
    """`num_tokens` tokens go from one list of blocks to another. Keys turn by `delta` positions, 0 is a bit-exact copy.

    Offsets and lists are as in `BlockSpan`.
    """

    src_block_ids: Sequence[int]
    src_offset: int
    dst_block_ids: Sequence[int]
    dst_offset: int
    num_tokens: int
    delta: int

    @property
    def source(self) -> BlockSpan:
        """What is read."""
        return BlockSpan(self.src_block_ids, self.src_offset, self.num_tokens)

    @property
    def destination(self) -> BlockSpan:
        """What is written."""
        return BlockSpan(self.dst_block_ids, self.dst_offset, self.num_tokens)


def check_runs(runs: Sequence[MoveRun], num_blocks: int, block_size: int) -> None:
    """Raise IntegrityError unless the runs may be carried out in any order.

    Every run lies inside of the cache. No block is both read and written, and no slot is written twice.
    """
    check_groups({0: runs}, {0: (num_blocks, block_size)})


def check_groups(runs: Mapping[int, Sequence[MoveRun]], sizes: Mapping[int, tuple[int, int]]) -> None:
    """Raise IntegrityError unless all runs of all groups may be carried out in any order.

    `sizes` are the blocks of each group and the tokens in each. What `check_runs` says holds in each group. Groups
    share one pool, and layers of several groups one tensor. So no block is written for one group and read or written
    for another.
    """
    read, written = {}, {}
    for group, found in runs.items():
        num_blocks, block_size = sizes[group]
        read[group] = _check_spans("source", [run.source for run in found], num_blocks, block_size)
        written[group] = _check_spans("destination", [run.destination for run in found], num_blocks, block_size)
        _check_written_once(written[group], [run.destination for run in found], block_size)
    owners = np.full(max((sizes[group][0] for group in runs), default=0), -1, dtype=np.int16)
    for group, ids in written.items():
        if (shared := ids[(owners[ids] >= 0) & (owners[ids] != group)]).size:
            raise IntegrityError(f"blocks {np.unique(shared)[:8].tolist()} are written for two groups by one move")
        owners[ids] = group
    for ids in read.values():
        if (shared := ids[owners[ids] >= 0]).size:
            raise IntegrityError(f"blocks {np.unique(shared)[:8].tolist()} are both source and destination of one move")


def _check_spans(name: str, spans: Sequence[BlockSpan], num_blocks: int, block_size: int) -> NDArray[np.int64]:
    """The block ids of all spans, one behind the other."""
    for block_ids, offset, num_tokens in spans:
        fits = 0 <= offset < block_size and len(block_ids) == -(-(offset + num_tokens) // block_size)
        if num_tokens <= 0 or not fits:
            raise IntegrityError(
                f"{num_tokens} {name} tokens from offset {offset} do not fill {len(block_ids)} blocks of {block_size}"
            )
    ids = np.concatenate([np.asarray(span.block_ids, dtype=np.int64) for span in spans] or [np.empty(0, np.int64)])
    if ids.size and not 0 <= ids.min() <= ids.max() < num_blocks:
        raise IntegrityError(f"{name} blocks span [{ids.min()}, {ids.max()}], the cache has {num_blocks} blocks")
    return ids


def _check_written_once(ids: NDArray[np.int64], spans: Sequence[BlockSpan], block_size: int) -> None:
    """Sorted by where they begin, the parts of blocks that are written end before the next one begins."""
    begins, ends = ids * block_size, (ids + 1) * block_size
    first = 0
    for block_ids, offset, num_tokens in spans:
        begins[first] += offset
        first += len(block_ids)
        ends[first - 1] -= -(offset + num_tokens) % block_size
    order = begins.argsort()
    twice = np.flatnonzero(ends[order][:-1] > begins[order][1:])
    if twice.size:
        raise IntegrityError(f"a slot of block {ids[order[twice[0]]]} is written twice by one move")
