"""The precomputed blocks: where they wait, how many there may be, and what became of their tokens.

    free queue   [ hold nothing )[ others, cold )[ precomputed, oldest first )[ others, used in the last min_age_s )
    next to be    ^ first                                                                                     last ^
    handed out                       a sequence waits last block first, as vLLM frees it

A block enters when a background request computes in it, and leaves in one of two ways. A request of somebody keeps or
copies it: it was *used*, and is an ordinary block from then on. Or it is handed out, or loses its hash, before that:
its tokens were *wasted*. Tokens computed = used + wasted + held, always.

Background work takes blocks in this order: those that hold nothing, KV of others that nobody has used for `min_age_s`,
and its own oldest ones. At its share of the pool it takes its own oldest blocks only. Others take in the same order,
and their warm KV last: a precomputed block goes before any that was in use a moment ago.

Decision: cold KV goes first. A pool that has run for a while is full, of contexts that nobody asks for again. If these
stayed, each block appended anywhere would take one that was precomputed.

When a block was last in use follows from the requests that ended: vLLM keeps no times. They are noted from the first
background request on. What was freed before counts as freed at that moment.

Blocks are moved to their place in front of the next step, not as they are freed. vLLM frees from many places (some of
them later, behind a fence), and hands blocks out only inside a step. There, too, what has become cold overtakes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING

from acmserve.engine.requests.receipt import KVOrigin, Span
from acmserve.engine.scheduling.leaps.runs import Jump
from acmserve.engine.vllm import block_pool
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Owner

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import BlockPool, KVCacheBlock

POOL_SHARE = "precompute_pool_share"
"""Why a background request ended early: its blocks are the whole share of the pool that precomputed blocks may hold."""
WARM_BLOCKS = "precompute_warm_blocks"
"""Why a background request ended early: the next block to be handed out holds KV that was in use a moment ago."""

_MOST_OVERTAKING = 1024
"""Cold blocks that are put in front in one step: more than most steps hand out, and a tenth of a millisecond."""


@dataclass(slots=True)
class BackgroundBlock:
    """Tokens `[start, end)` of a sequence of `owner` were precomputed in this block. The range may be empty."""

    owner: Owner
    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class BackgroundCounts:
    """Precomputed tokens, and what became of them. Idle seconds spent, and those that others waited for a chunk."""

    computed_tokens: int = 0
    used_tokens: int = 0
    wasted_tokens: int = 0
    seconds: float = 0.0
    delay_seconds: float = 0.0
    left_tokens: int = 0  # among the wasted ones


class BackgroundBlocks:
    """Precomputed blocks, by block id. Unplaced ones are freed, or about to be, and not yet in their place."""

    reuse_first = True
    """Negative control of the simulator: else the blocks stay where vLLM frees them, behind everybody's."""
    spare_warm = True
    """Negative control of the simulator: else background work takes whatever is handed out next."""

    def __init__(self, pool: BlockPool, block_size: int, max_pool_share: float, min_age_s: float) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.counts = BackgroundCounts()
        self._reported = BackgroundCounts()
        self.max_blocks = int(max_pool_share * pool.num_gpu_blocks)
        self.pool = pool
        self._block_size = block_size
        self._min_age_s = min_age_s
        self._blocks: dict[int, BackgroundBlock] = {}
        self._unplaced: dict[int, None] = {}
        self._placed: dict[int, None] = {}
        self._freed_at: dict[int, float] = {}
        self._since: float | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._blocks

    @property
    def watching(self) -> bool:
        """Whether there was any background request. When not, nothing is noted and nothing costs."""
        return self._since is not None

    @property
    def num_free(self) -> int:
        """Blocks that wait in the free queue, or will: in front of a step they have to be in their place."""
        return len(self._placed) + len(self._unplaced)

    def watch(self) -> None:
        """Begin to note when blocks are freed."""
        if self._since is None:
            self._since = self.clock()

    def add(self, owner: Owner, table: Sequence[int], first: int, start: int, end: int, inherited: int) -> None:
        """A background request computes tokens `[start, end)` in this step. From block `first` on the table is its own.

        Of tokens copied in front of `start`, those from `inherited` on were precomputed, too.
        """
        bs = self._block_size
        for index in range((end - 1) // bs, first - 1, -1):
            last = min(end, (index + 1) * bs)
            block = self._blocks.get(table[index])
            if block is None:
                begin = min(max(inherited, index * bs), last)
                self._blocks[table[index]] = BackgroundBlock(owner, begin, last)
                continue
            if inherited < last:
                if block.end < inherited:
                    self.counts.wasted_tokens += block.num_tokens
                    block.start = inherited
                block.end = last
            break
        self.counts.computed_tokens += end - start

    def use(self, block_id: int, start: int, end: int) -> Span | None:
        """A request takes tokens `[start, end)` of the block. Returns those of them that were precomputed, if any."""
        block = self._blocks.pop(block_id, None)
        if block is None:
            return None
        self._leave(block_id)
        start, end = max(start, block.start), min(end, block.end)
        num_used = max(end - start, 0)
        self.counts.used_tokens += num_used
        self.counts.wasted_tokens += block.num_tokens - num_used
        return (start, end) if num_used else None

    def use_prefix(self, blocks: Iterable[KVCacheBlock]) -> list[Span]:
        """A request holds `blocks`, from the first token of its prompt on: it found those that were precomputed."""
        bs = self._block_size
        found = (self.use(block.block_id, i * bs, (i + 1) * bs) for i, block in enumerate(blocks))
        return [span for span in found if span is not None]

    def use_jump(self, jump: Jump) -> list[Span]:
        """A request copies what `jump` reads. Returns the part that was precomputed and is kept."""
        kept: list[Span] = []
        for run in jump.reads if self._blocks else ():
            spans = [self.use(*piece) for piece in run.pieces()]
            kept += [span for span in spans if span is not None and run.segment.origin is KVOrigin.KEPT]
        return kept

    def inherit_jump(self, jump: Jump) -> int:
        """A background request copies what `jump` reads. Returns the token from which on that was precomputed.

        Those tokens count for the new blocks from now on.
        """
        inherited = jump.end
        for run in reversed(jump.reads):
            for block_id, start, end in reversed(list(run.pieces())):
                block = self._blocks.get(block_id)
                if block is not None and block.start < block.end == end == inherited:
                    block.end = inherited = max(start, block.start)
        return inherited

    def hold(self, blocks: Iterable[KVCacheBlock]) -> None:
        """A background request holds these blocks again. They are not in the free queue."""
        for block in blocks:
            self._leave(block.block_id)

    def on_freed(self, block_ids: Sequence[int]) -> None:
        """These blocks of one sequence, in its order, are about to be freed."""
        if not self.watching:
            return
        self._freed_at.update(dict.fromkeys(block_ids, self.clock()))
        for block_id in reversed(block_ids):
            if block_id in self._blocks:
                self._leave(block_id)
                self._unplaced[block_id] = None

    def place(self) -> None:
        """Move the blocks that were freed to their place in the free queue. Call before anything is allocated.

        placed        [ hold nothing )[ cold .. )[ placed )[ freed since )[ cold since )[ warm .......)
        overtaken     [ hold nothing )[ cold .. )[ cold since )[ placed ...............)[ warm .......)
        """
        self._place_freed()
        if self._placed and self.reuse_first:
            latest = self.clock() - self._min_age_s
            first, last = (self.pool.blocks[next(order)] for order in (iter(self._placed), reversed(self._placed)))
            block_pool.let_overtake(
                self.pool, first, last, lambda block: not self._is_warm(block, latest), _MOST_OVERTAKING
            )

    def _place_freed(self) -> None:
        free: list[KVCacheBlock] = []
        for block_id in list(self._unplaced):
            block = self.pool.blocks[block_id]
            if block.ref_cnt:
                continue
            del self._unplaced[block_id]
            if block.block_hash is None:
                self._waste(block_id)
            else:
                free.append(block)
        if not free:
            return
        last = next((self.pool.blocks[block_id] for block_id in reversed(self._placed)), None)
        block_pool.queue_behind(self.pool, free, last, self._on_reuse, self.reuse_first)
        self._placed.update(dict.fromkeys(block.block_id for block in free))

    def make_room(self, num_wanted: int, hit: Collection[int]) -> tuple[int, str]:
        """How many of `num_wanted` blocks a background request may allocate now, and what else stands against it.

        `hit` are free blocks that the request is about to hold: they are not handed out. Gives up the oldest
        precomputed blocks where their bound asks for it.
        """
        num_blocks = self._count_displaceable(num_wanted, hit)
        reason = WARM_BLOCKS if num_blocks < num_wanted else POOL_SHARE
        excess = max(len(self._blocks) + num_blocks - self.max_blocks, 0)
        idle = (i for i in self._placed if i not in hit and not self.pool.blocks[i].ref_cnt)
        for block_id in list(islice(idle, excess)):
            self.pool.evict_blocks({block_id})
            self._waste(block_id)
        excess = max(len(self._blocks) + num_blocks - self.max_blocks, 0)
        return max(num_blocks - excess, 0), POOL_SHARE if excess else reason

    def forget(self, owner: Owner, kept: Collection[int]) -> None:
        """Let nobody find what was precomputed for the session of `owner`, but for the blocks `kept`.

        Blocks that a background request still holds are counted until it ends.
        """
        mine = [i for i, block in self._blocks.items() if block.owner.session == owner.session]
        for block_id in (i for i in mine if i not in kept):
            self.pool.evict_blocks({block_id})
            if not self.pool.blocks[block_id].ref_cnt:
                self._waste(block_id)

    def take_counts(self) -> BackgroundCounts:
        """What was counted since the last call."""
        before, now = self._reported, self.counts
        self._reported = replace(now)
        return BackgroundCounts(**{f.name: getattr(now, f.name) - getattr(before, f.name) for f in fields(now)})

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when the blocks, the pool and the counts disagree."""
        counts = self.counts
        num_held = sum(block.num_tokens for block in self._blocks.values())
        if counts.computed_tokens != counts.used_tokens + counts.wasted_tokens + num_held:
            raise IntegrityError(f"precompute: {num_held} tokens held, but {counts}")
        if len(self._blocks) > self.max_blocks:
            raise IntegrityError(f"precompute: {len(self._blocks)} blocks held, {self.max_blocks} allowed")
        for block_id in self._blocks:
            num_references = self.pool.blocks[block_id].ref_cnt
            is_placed, is_waiting = block_id in self._placed, block_id in self._unplaced
            lost = not num_references and not is_placed and not is_waiting
            if lost or (is_placed and (is_waiting or num_references)):
                where = f"in its place: {is_placed}, to be placed: {is_waiting}"
                raise IntegrityError(f"precompute: block {block_id} has {num_references} references, {where}")
        strangers = [i for i in (*self._placed, *self._unplaced) if i not in self._blocks]
        if strangers:
            raise IntegrityError(f"precompute: {len(strangers)} blocks placed that are not held: {strangers[:3]}")
        self._check_order()

    def _check_order(self) -> None:
        """No block in its place has KV of others in front of it that was in use a moment ago."""
        if not self._placed:
            return
        num_warm, latest = 0, self.clock() - self._min_age_s
        for block in self.pool.free_block_queue.iter_blocks_after(None):
            if block.block_id in self._placed and num_warm:
                raise IntegrityError(f"precompute: block {block.block_id} is behind {num_warm} warm blocks of others")
            num_warm += self._is_warm(block, latest)

    def _count_displaceable(self, num_wanted: int, hit: Collection[int]) -> int:
        """How many of the next `num_wanted` blocks to be handed out may be displaced, up to the first that may not."""
        latest = self.clock() - self._min_age_s
        num_blocks = 0
        for block in self.pool.free_block_queue.iter_blocks_after(None):
            if num_blocks == num_wanted:
                break
            if block.block_id in hit:
                continue
            if self.spare_warm and self._is_warm(block, latest):
                break
            num_blocks += 1
        return num_blocks

    def _is_warm(self, block: KVCacheBlock, latest: float) -> bool:
        """Whether a free block holds KV of others that was in use after `latest`."""
        assert self._since is not None
        is_others = block.block_hash is not None and block.block_id not in self._blocks
        return is_others and self._freed_at.get(block.block_id, self._since) > latest

    def _on_reuse(self, block: KVCacheBlock) -> None:
        """vLLM hands a placed block out, or resets its cache. Used blocks are no longer among the precomputed ones."""
        self._waste(block.block_id)

    def _waste(self, block_id: int) -> None:
        block = self._blocks.pop(block_id, None)
        if block is not None:
            self.counts.wasted_tokens += block.num_tokens
        self._leave(block_id)

    def _leave(self, block_id: int) -> None:
        self._placed.pop(block_id, None)
        self._unplaced.pop(block_id, None)
