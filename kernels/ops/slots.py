"""What a move reads and writes: lists of slots, cut into segments that share a position delta.

A slot is `block_id * block_size + offset`. The checks here hold for every implementation of `move`, so that none of
them needs its own. They are linear in the number of slots and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acmserve.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class SlotRun:
    """Entries `[start, end)` of the slot lists turn by `delta` positions. 0 is a bit-exact copy."""

    start: int
    end: int
    delta: int


def slot_range(block_ids: Sequence[int], first_offset: int, num_tokens: int, block_size: int) -> Tensor:
    """Slots, int64 `[num_tokens]`, of consecutive tokens. The first one sits at `first_offset` in `block_ids[0]`.

        block_ids[0]              block_ids[1]        ...
        |....[first_offset ...... | ................. | .....)   num_tokens slots

    Raises IntegrityError where the blocks do not hold that many tokens.
    """
    if not 0 <= first_offset < block_size or first_offset + num_tokens > len(block_ids) * block_size:
        raise IntegrityError(
            f"{num_tokens} tokens from offset {first_offset} do not fit {len(block_ids)} blocks of {block_size}"
        )
    offsets = torch.arange(first_offset, first_offset + num_tokens, dtype=torch.int64)
    blocks = torch.tensor(block_ids, dtype=torch.int64)
    return blocks[offsets // block_size] * block_size + offsets % block_size


def check_segments(segments: Sequence[SlotRun], num_slots: int) -> None:
    """Raise IntegrityError unless the segments tile `[0, num_slots)` in order."""
    end = 0
    for segment in segments:
        if segment.start != end or segment.end <= segment.start:
            raise IntegrityError(f"{segment} does not continue the segments before it, which end at {end}")
        end = segment.end
    if end != num_slots:
        raise IntegrityError(f"segments cover {end} of {num_slots} slots")


def check_slots(src_slots: Tensor, dst_slots: Tensor, num_blocks: int, block_size: int) -> None:
    """Raise IntegrityError unless a move may run in any order on these slots.

    int64 tensors on the CPU, of one length, inside of the cache. No block is both read and written, and no slot is
    written twice.
    """
    for name, slots in (("src_slots", src_slots), ("dst_slots", dst_slots)):
        if slots.dtype != torch.int64 or slots.dim() != 1 or slots.device.type != "cpu":
            found = f"{slots.dtype} {tuple(slots.shape)} on {slots.device}"
            raise IntegrityError(f"{name} must be int64 [n] on the CPU, is {found}")
        if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < num_blocks * block_size:
            raise IntegrityError(
                f"{name} spans [{int(slots.min())}, {int(slots.max())}], the cache has {num_blocks * block_size} slots"
            )
    if src_slots.numel() != dst_slots.numel():
        raise IntegrityError(f"{src_slots.numel()} source slots for {dst_slots.numel()} destination slots")
    is_source = torch.zeros(num_blocks, dtype=torch.bool)
    is_source[src_slots // block_size] = True
    dst_blocks = dst_slots // block_size
    if bool(is_source[dst_blocks].any()):
        shared = dst_blocks[is_source[dst_blocks]].unique().tolist()
        raise IntegrityError(f"blocks {shared[:8]} are both source and destination of one move")
    if dst_slots.unique().numel() != dst_slots.numel():
        raise IntegrityError("a destination slot is written twice by one move")
