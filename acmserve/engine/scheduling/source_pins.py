"""Source blocks that are referenced for the current step, so that nobody is handed one before it was copied.

    free blocks   [ reserved: running and admitted requests )[ needed by this one )[ its idle sources )[ ... )

A jump is pinned when its request still finds its own blocks beside its sources. Else its tokens are computed.

Knows blocks and counts. Does not know requests or segments.

Decision: one step pins at most `jump.MAX_BLOCKS` blocks, for all requests together. A jump that does not fit waits for
the next step. It is not cut, for each cut costs a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.leaps.runs import Jump
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import BlockPool, KVCacheBlock


class SourcePins:
    """The pins of one step. vLLM's fence gets them at its end."""

    pin_sources = True
    """Negative control of the simulator: without pins a source can be handed out before it is copied."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks: list[KVCacheBlock] = []
        self._num_reserved = 0
        self._num_left = 0

    @property
    def is_spent(self) -> bool:
        """Whether this step pins nothing more."""
        return self._num_left <= 0

    def begin_step(self, num_reserved: int) -> None:
        """Running requests may still ask for `num_reserved` blocks: pins must not make them preempt each other."""
        self._num_reserved = num_reserved
        self._num_left = jumping.MAX_BLOCKS

    def reserve(self, num_blocks: int) -> None:
        """A request that pins nothing will ask for `num_blocks`."""
        self._num_reserved += num_blocks

    def fits(self, jump: Jump) -> bool:
        """Whether this step may pin `jump`. When not, it pins nothing more: what came first goes first.

        A longer one is pinned as the first of its step. No step would be long enough.
        """
        if len(jump.blocks) <= self._num_left or self._num_left == jumping.MAX_BLOCKS:
            return True
        self._num_left = 0
        return False

    def pin(self, jump: Jump, num_needed: int) -> bool:
        """Reference the source blocks if `num_needed` free blocks remain besides what is reserved. All or nothing."""
        blocks = list({block.block_id: block for block in jump.blocks}.values())
        num_idle = sum(block.ref_cnt == 0 for block in blocks)
        num_free = self._pool.get_num_free_blocks() - self._num_reserved
        if num_free - num_idle < num_needed:
            return False
        self._num_reserved += num_needed
        self._num_left -= len(jump.blocks)
        if self.pin_sources:
            self._pool.touch(blocks)
            self._blocks.extend(blocks)
        return True

    def take(self) -> list[KVCacheBlock]:
        """The pinned blocks, first to last. Whoever takes them frees them."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def check_integrity(self) -> None:
        """Between steps nothing may be pinned."""
        if self._blocks:
            raise IntegrityError(f"source pins: {len(self._blocks)} blocks pinned between steps")
