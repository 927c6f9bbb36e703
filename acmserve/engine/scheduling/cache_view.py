"""What one scheduler's prefix cache holds in every KV cache group, and how many free blocks a request is about to take.

    free blocks   [ growth of running requests )[ needed by a waiting one, its free hits included )[ ... )

Knows keys, blocks and counts. Does not know sessions, plans or jumps. Hands out nothing, and takes no references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.block_pool import PrefixHit
from acmserve.engine.vllm.window_tables import WindowTables
from acmserve.plan.source import ServedSequence

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import KVCacheBlock, KVCacheManager, Request


class CacheView:
    """See the module. `holds_below` says whether a tier below has a block hash."""

    def __init__(self, kv_cache_manager: KVCacheManager, groups: KVGroups, windows: WindowTables) -> None:
        self._manager = kv_cache_manager
        self._pool = kv_cache_manager.block_pool
        self._groups = groups
        self._windows = windows
        self.holds_below: Callable[[bytes], bool] = _nothing_below

    def block(self, key: bytes, group: int) -> KVCacheBlock | None:
        """The cached block of a group with this chain hash or tail key."""
        return block_pool.cached_block(self._pool, key, group)

    def prefix(self, request: Request, max_tokens: int | None = None) -> PrefixHit:
        """What `request` begins with and is cached under its own hashes, at most `max_tokens` of it."""
        return block_pool.cached_prefix(self._manager, self._groups, request, max_tokens)

    def num_cached(self, request: Request) -> int:
        """Tokens of that prefix, the whole of it. Its blocks are not looked for."""
        return block_pool.num_cached_tokens(self._manager, self._groups, request)

    def has_any(self, source: ServedSequence, start: int, end: int) -> bool:
        """Whether any block of a source's tokens `[start, end)` is cached, or below. Another thread may ask."""
        size, group = self._groups.leading.block_size, self._groups.leading.index
        keys = source.block_keys(start // size, (end - 1) // size + 1, size)
        return block_pool.is_any_cached(self._pool, keys, group) or any(map(self.holds_below, keys))

    def count_growth(self, running: Iterable[Request]) -> int:
        """Blocks that running requests may still ask for."""
        num_blocks = 0
        for request in running:
            tables = self._manager.get_blocks(request.request_id).blocks
            for group in self._groups.groups:
                num_left = -(-(request.num_tokens + 1) // group.block_size) - len(tables[group.index])
                num_blocks += max(min(num_left, self._windows.most_blocks(group, request.num_tokens)), 0)
        return num_blocks

    def count_needed(self, request: Request, hit: PrefixHit) -> int:
        """Free blocks that a waiting request takes, with those of its hit that are free now."""
        num_blocks = 0
        for group in self._groups.groups:
            found = hit.blocks[group.index]
            num_blocks += self._windows.most_blocks(group, request.num_tokens) - (len(found) if group.is_full else 0)
            num_blocks += sum(block.ref_cnt == 0 and not block.is_null for block in found)
        return num_blocks

    def keep_tail(self, request_id: str, block_ids: tuple[list[int], ...], key: bytes, num_tokens: int) -> bool:
        """Have the partial blocks of a finished request of `num_tokens` found under `key`. Whether there are any."""
        tail = self._tail_blocks(request_id, block_ids, num_tokens)
        return bool(tail) and block_pool.register_tail(self._pool, tail, key, num_tokens)

    def _tail_blocks(self, request_id: str, block_ids: tuple[list[int], ...], num_tokens: int) -> list[int]:
        """The block of every group that token `num_tokens` goes to. Empty where one lacks what is in front of it.

        Of a recurrent group it holds the state. vLLM may keep states within blocks. There none is kept here.
        """
        tail: list[int] = []
        if self._groups.recurrent and self._groups.leading.block_size != self._groups.hash_block_size:
            return tail
        for group in self._groups.groups:
            table, index = block_ids[group.index], num_tokens // group.block_size
            if index >= len(table) or not self._windows.is_whole(request_id, group, index):
                return []
            tail.append(table[index])
        return tail

    def keep_windows(self, request_id: str, block_ids: tuple[list[int], ...], hashes: Sequence[bytes]) -> None:
        """Have what a finished request still holds of its windows found again, as the rest of it is.

        vLLM keeps a window where the prompt ended, and none behind the answer. `hashes` are of the blocks whose KV is
        computed.

            full      [ prompt .............................)[ answer ......)      every whole block is cached
            window             [ cached where it ended ......)      [ held .)      cached from here on
        """
        for group in self._groups.windows:
            size, table = group.block_size, block_ids[group.index]
            keys = hashes[size // self._groups.hash_block_size - 1 :: size // self._groups.hash_block_size]
            for index in range(group.num_skipped_blocks(len(keys) * size), min(len(keys), len(table))):
                if self._windows.is_whole(request_id, group, index):
                    block_pool.register_whole(self._pool, table[index], keys[index], group.index, (index + 1) * size)

    def states(self, request_id: str, position: int) -> list[KVCacheBlock]:
        """The block of every recurrent group with the state of a running request behind `position` tokens."""
        tables = self._manager.get_blocks(request_id).blocks
        return [tables[group.index][(position - 1) // group.block_size] for group in self._groups.recurrent]


def _nothing_below(_key: bytes) -> bool:
    return False
