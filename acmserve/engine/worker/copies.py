"""The copies of one step, from the scheduler to the workers: which KV goes where, and by how many positions it turns.

Pure data. It crosses process boundaries inside vLLM's `SchedulerOutput`, so it holds block ids and integers only,
never block objects. The worker (`engine/worker/kv_mover.py`) executes it before the forward pass of the same step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVCopy:
    """Copy the KV of one contiguous token range of one request, into that request's own blocks, in one group's layers.

        source sequence   ......[src_start ............ src_start+n)......     blocks src_block_ids
                                   |  K rotated by delta = dst_start - src_start, V as it is
        request           ...[dst_start ............ dst_start+n)...           blocks dst_block_ids

    `src_block_ids[0]` is the block that holds token `src_start` (offset `src_start % block_size` in it). Likewise for
    `dst`. Both lists cover the range exactly. Source and destination blocks are disjoint. Blocks are those of KV cache
    group `group`, and hold its number of tokens each.
    """

    request_id: str
    src_start: int
    dst_start: int
    num_tokens: int
    src_block_ids: tuple[int, ...]
    dst_block_ids: tuple[int, ...]
    group: int = 0

    @property
    def delta(self) -> int:
        """Positions by which the keys turn. 0 is a plain, bit-exact copy."""
        return self.dst_start - self.src_start


@dataclass(frozen=True, slots=True)
class StepCopies:
    """All copies of one scheduler step, in no particular order (no two overlap)."""

    copies: tuple[KVCopy, ...] = ()
