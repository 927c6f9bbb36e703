"""Block tables of window groups around a leap: every private access to vLLM's managers of single groups.

    table before    [ nulls )[ read at `start` ..)
    while it leaps  [ nulls )[ read at `start` ..)[ nulls ............)[ copied, then computed ..)
    afterwards      [ nulls ..........................................)[ copied, then computed ..)
                                                  `start`             num_skipped_blocks(end)

vLLM fills a running request's table without a gap. So the place of what nobody reads is padded with null blocks before
it allocates. It frees nothing of the request until the leap is committed. Rolled back, the table is as it was.

Knows tables and positions. Does not know sessions, sources or plans.

Decision: a block of which a part was not copied is not cached. A later request could begin behind it, and read that
part. It may be the head of the first copied block, or the rest of the block in which the leap begins.

        block         |  not copied )[ copied ....|          its hash would promise the whole of it
                                     needed_from(end)
        block         |  computed ..)[ not copied |[ copied, or nulls ...
                                   start           needed_from(end)

So it is with the state at which a leap begins. It may stand for the midst of its block. vLLM names the last end of a
block in a prompt apart. It would name this state there, where a step in flight still holds it.

Decision: the managers of one engine are wrapped, and not vLLM's classes. Those of full attention are left alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from acmserve.engine.groups.facts import GroupFacts, KVGroups
from acmserve.engine.vllm.hooks import Padding
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


class WindowTables:
    """The window groups of one scheduler, and its recurrent ones. Every method does nothing for a model without."""

    leaves_heads_uncached = True
    """Negative control of the simulator: else a block is cached whose head nobody wrote."""
    pads = True
    """Negative control: else vLLM allocates blocks for all that a leap passes over."""

    def __init__(self, kv_cache_manager: KVCacheManager, groups: KVGroups) -> None:
        managers = kv_cache_manager.coordinator.single_type_managers
        self._manager = kv_cache_manager
        self._groups = groups
        self._windows: tuple[tuple[GroupFacts, Any], ...] = tuple((g, managers[g.index]) for g in groups.windows)
        self._leaping: dict[str, dict[int, int]] = {}
        self._whole_from: dict[str, dict[int, int]] = {}
        self._whole_before: dict[str, dict[int, int]] = {}
        self._recurrent: tuple[tuple[GroupFacts, Any], ...] = tuple((g, managers[g.index]) for g in groups.recurrent)
        for group, manager in (*self._windows, *self._recurrent):
            manager.cache_blocks = functools.partial(self._cache_blocks, group, manager, manager.cache_blocks)
            manager.remove_skipped_blocks = functools.partial(self._remove_skipped, manager.remove_skipped_blocks)

    def most_blocks(self, group: GroupFacts, num_tokens: int) -> int:
        """Blocks of `group` that a request of `num_tokens` holds at most. Those of a window are handed back.

        Of states it holds that of the step before, that of this one, and one that is kept in between.
        """
        num_blocks = -(-num_tokens // group.block_size)
        if group.is_full:
            return num_blocks
        if group.mixed is not None:
            return min(num_blocks, 3)
        cap = self._manager.coordinator.single_type_managers[group.index].max_admission_blocks_per_request
        return min(num_blocks, cap)

    def num_copied_blocks(self, start: int, end: int) -> int:
        """Blocks of window groups that a leap over `[start, end)` takes, besides those that the request holds."""
        return sum(
            -(-end // g.block_size) - max(start, g.needed_from(end)) // g.block_size for g in self._groups.windows
        )

    def expect(self, request_id: str, start: int, end: int) -> None:
        """`[start, end)` is going to be copied in this step."""
        if self._windows or self._recurrent:
            self._whole_before.setdefault(request_id, dict(self._whole_from.get(request_id, {})))
        for group, _ in self._windows:
            first = group.needed_from(end)
            if first > start and self.leaves_heads_uncached:
                self._whole_from.setdefault(request_id, {})[group.index] = -(-first // group.block_size)
        for group, _ in self._recurrent if self.leaves_heads_uncached else ():
            self._whole_from.setdefault(request_id, {})[group.index] = end // group.block_size

    def pad(self, request_id: str, start: int, end: int) -> None:
        """A running request is going to leap over `[start, end)`: nothing is allocated for what is not read.

        Of recurrent groups vLLM allocates one block by itself.
        """
        self.expect(request_id, start, end)
        if not self._windows:
            return
        before = self._leaping[request_id] = {}
        for group, manager in self._windows:
            table = manager.req_to_blocks[request_id]
            before[group.index] = len(table)
            if self.pads:
                table += [manager.block_pool.null_block] * (group.num_skipped_blocks(end) - len(table))

    def commit(self, request_id: str, end: int) -> tuple[Padding, list[KVCacheBlock]]:
        """The leap to `end` is scheduled. Returns the null blocks that it added, and the blocks that it passed over.

        A step in flight may still read those: they are to be freed behind vLLM's fence.
        """
        before = self._leaping.pop(request_id, {})
        self._whole_before.pop(request_id, None)
        num_added = [0] * len(self._groups.groups)
        passed: list[KVCacheBlock] = []
        for group, manager in self._windows if before else ():
            held, table = before[group.index], manager.req_to_blocks[request_id]
            num_added[group.index] = max(group.num_skipped_blocks(end) - held, 0) if self.pads else 0
            if num_added[group.index]:
                passed += [block for block in table[:held] if not block.is_null]
                table[:held] = [manager.block_pool.null_block] * held
        return tuple(num_added), passed

    def roll_back(self, request_id: str) -> None:
        """What was expected is not copied. The tables are as they were, and so is what may be cached of them."""
        if whole := self._whole_before.pop(request_id, None):
            self._whole_from[request_id] = whole
        else:
            self._whole_from.pop(request_id, None)
        before = self._leaping.pop(request_id, {})
        for group, manager in self._windows if before else ():
            del manager.req_to_blocks[request_id][before[group.index] :]

    def drop(self, request_id: str) -> None:
        """The request lost its blocks, or is about to."""
        for held in (self._leaping, self._whole_from, self._whole_before):
            held.pop(request_id, None)

    def is_whole(self, request_id: str, group: GroupFacts, index: int) -> bool:
        """Whether block `index` of a request holds the KV of all its tokens, from its first one on."""
        return index >= self._whole_from.get(request_id, {}).get(group.index, 0)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a leap is pending between steps."""
        if pending := self._leaping.keys() | self._whole_before.keys():
            raise IntegrityError(f"window tables: {len(pending)} leaps pending between steps")

    def _cache_blocks(
        self,
        group: GroupFacts,
        manager: Any,
        cache_blocks: Any,
        request: Request,
        num_tokens: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        first = self._whole_from.get(request.request_id, {}).get(group.index)
        if first is not None:
            cached = manager.num_cached_block
            cached[request.request_id] = max(cached.get(request.request_id, 0), first)
            if group.mixed is not None and num_tokens // group.block_size <= first:
                return
        cache_blocks(request, num_tokens, *args, **kwargs)

    def _remove_skipped(self, remove: Any, request_id: str, *args: Any, **kwargs: Any) -> None:
        if request_id not in self._leaping:
            remove(request_id, *args, **kwargs)
