"""vLLM's block pool, free queue and block hashes: every private access to them.

Knows blocks, keys and the queue of free blocks. Does not know sessions, plans or why a block is moved.

Decision: a block is put into its place in the free queue by its links. vLLM's own methods append or prepend only, and
a scan of the queue in each step would cost more than the move saves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acmserve.engine.groups.facts import KVGroups

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
    from vllm.v1.request import Request

    from acmserve.engine.vllm.hidden_hasher import HiddenHasher
    from acmserve.engine.vllm.lineage_hasher import LineageHasher


_SUFFIXES = tuple(group.to_bytes(4, "big") for group in range(256))
"""What `make_block_hash_with_group_id` puts behind a block hash, by group."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The first `num_tokens` of a prompt are cached. `blocks` are by group. Null blocks stand where nobody reads."""

    num_tokens: int
    blocks: tuple[list[KVCacheBlock], ...]


def block_hash_function(vllm_config: VllmConfig) -> Callable[[Any], bytes]:
    """The hash function of vLLM's prefix cache (v1/engine/core.py, where the stock hasher is made)."""
    from vllm.utils.hashing import get_hash_fn_by_name

    return get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)


def set_hasher(request: Request, hasher: LineageHasher, block_hashes: Sequence[BlockHash]) -> None:
    """Give `request` these hashes of all its full blocks, and let `hasher` make those that follow."""
    request._block_hasher = hasher
    request.block_hashes[:] = block_hashes


def hide(request: Request, hasher: HiddenHasher, first_block: int) -> None:
    """Let `hasher` make the block hashes of `request` from block `first_block` on."""
    request._block_hasher = hasher
    rehash(request, first_block)


def rehash(request: Request, first_block: int) -> None:
    """Make the hashes from `first_block` on again. Those blocks must not be registered yet."""
    del request.block_hashes[first_block:]
    request.update_block_hashes()


def is_loaded(request: Request) -> bool:
    """Whether the request stands in a waiting queue with KV: a load between steps brought it."""
    from vllm.v1.request import RequestStatus

    return request.num_computed_tokens > 0 and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def is_waiting(request: Request) -> bool:
    """Whether the request stands in a waiting queue with nothing computed: new, or preempted."""
    from vllm.v1.request import RequestStatus

    return request.num_computed_tokens == 0 and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def is_running(request: Request) -> bool:
    """Whether the request holds blocks and stands among vLLM's running requests."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.RUNNING)


def cached_block(pool: BlockPool, key: bytes, group: int = 0) -> KVCacheBlock | None:
    """The block of `group` that is registered under `key`.

    Asked for every block of a source, so it goes by vLLM's map. `get_cached_block` takes three times as long.
    """
    found: KVCacheBlock | None = pool.cached_block_hash_to_block.get_one_block(key + _SUFFIXES[group])
    return found


def cached_prefix(
    manager: KVCacheManager, groups: KVGroups, request: Request, max_tokens: int | None = None
) -> PrefixHit:
    """What `request` begins with and is cached in every group, at most `max_tokens` of it.

    Not its last token: that is always computed. Neither the last block of a hit where vLLM computes it anew (EAGLE,
    MTP). Where there are several groups vLLM is asked, as it asks itself.
    """
    if not groups.is_lone:
        most = request.num_tokens - 1 if max_tokens is None else min(max_tokens, request.num_tokens - 1)
        found, num_tokens, _ = manager.coordinator.find_longest_cache_hit(request.block_hashes, most)
        return PrefixHit(num_tokens, found)
    index, bs = manager.block_pool.cached_block_hash_to_block, groups.hash_block_size
    keys = _cached_keys(manager, request)[: None if max_tokens is None else max_tokens // bs]
    blocks = [block for key in keys if (block := index.get_one_block(key)) is not None]
    return PrefixHit(len(blocks) * bs, (blocks,))


def num_cached_tokens(manager: KVCacheManager, groups: KVGroups, request: Request) -> int:
    """How many tokens `cached_prefix` finds. It names no block of a lone group: thousands take a millisecond."""
    if not groups.is_lone:
        return cached_prefix(manager, groups, request).num_tokens
    return groups.hash_block_size * len(_cached_keys(manager, request))


def is_any_cached(pool: BlockPool, keys: Iterable[bytes], group: int = 0) -> bool:
    """Whether a block of `group` is registered under one of `keys`. Another thread may ask: each is one look."""
    suffix = _SUFFIXES[group]
    return any(map(pool.cached_block_hash_to_block._cache.__contains__, [key + suffix for key in keys]))


def _cached_keys(manager: KVCacheManager, request: Request) -> list[Any]:
    """The registered keys of a lone group that a hit of `request` has. Without a step of Python for each."""
    pool = manager.block_pool
    keys = request.block_hashes[: (request.num_tokens - 1) // pool.hash_block_size]
    is_registered = pool.cached_block_hash_to_block._cache.__contains__
    found = list(itertools.takewhile(is_registered, [key + _SUFFIXES[0] for key in keys]))
    return found[:-1] if manager.use_eagle else found


def evict_keys(pool: BlockPool, keys: Iterable[bytes], num_groups: int = 1) -> None:
    """Take every block that is registered under one of `keys` out of the prefix-cache index, in every group.

    vLLM does not deduplicate, so a key may name several blocks. A block that a request uses stays with it and loses its
    hash, as in `BlockPool.evict_blocks`. Nobody new finds the block, and it is handed out first once it is free.
    """
    for key in keys:
        for group in range(num_groups):
            block = cached_block(pool, key, group)
            while block is not None and pool._maybe_evict_cached_block(block):
                block = cached_block(pool, key, group)


def register_whole(pool: BlockPool, block_id: int, key: bytes, group: int, num_tokens: int) -> None:
    """Keep a whole block of `group` findable under the chain hash of the `num_tokens` tokens up to its end.

    Nothing for one that has a hash or is used by others, and for the null block.
    """
    block = pool.blocks[block_id]
    if pool.enable_caching and not block.is_null and block.ref_cnt == 1 and block.block_hash is None:
        _name(pool, block, key, group, num_tokens)


def _name(pool: BlockPool, block: KVCacheBlock, key: bytes, group: int, num_tokens: int) -> None:
    """Let a block of `group` be found under `key`: it holds what ends with the `num_tokens` tokens of that."""
    from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

    pool._insert_block_hash(make_block_hash_with_group_id(BlockHash(key), group), block, num_tokens)


def register_tail(pool: BlockPool, block_ids: Sequence[int], key: bytes, num_tokens: int) -> bool:
    """Keep the partial block of every group findable under `key` until the pool hands it out.

    Called before the blocks are freed. They then wait in vLLM's free queue like any cached block. Each stands in front
    of the full blocks of its sequence, so it goes first under pressure. Returns False, and keeps none, where one of
    them is used by others or has a hash already.
    """
    blocks = [pool.blocks[block_id] for block_id in block_ids]
    if not pool.enable_caching or any(b.is_null or b.ref_cnt != 1 or b.block_hash is not None for b in blocks):
        return False
    for group, block in enumerate(blocks):
        _name(pool, block, key, group, num_tokens)
    return True


def take_named(
    pool: BlockPool, groups: Sequence[int], key: bytes, num_tokens: int, num_spare: int
) -> list[KVCacheBlock]:
    """A new block for each of `groups`, found under `key` from now on. Empty where less than `num_spare` stay free.

    Whoever takes the blocks has them filled in this step, and frees them behind it.
    """
    if not pool.enable_caching or pool.get_num_free_blocks() < len(groups) + num_spare:
        return []
    blocks: list[KVCacheBlock] = pool.get_new_blocks(len(groups))
    for group, block in zip(groups, blocks, strict=True):
        _name(pool, block, key, group, num_tokens)
    return blocks


def release_tail(pool: BlockPool, key: bytes, num_groups: int = 1) -> None:
    """Give a tail up, where it still exists and nobody is copying from it."""
    for group in range(num_groups):
        block = cached_block(pool, key, group)
        if block is not None and block.ref_cnt == 0:
            pool._maybe_evict_cached_block(block)


def queue_behind(
    pool: BlockPool,
    blocks: Sequence[KVCacheBlock],
    last: KVCacheBlock | None,
    on_reuse: Callable[[KVCacheBlock], None],
    move: bool,
) -> None:
    """Put free, cached blocks in order behind the free block `last`. Without one, behind all that hold nothing.

        free queue  [hold nothing .....)[..... last][ blocks )[cached .....)       next to be handed out: the first

    `on_reuse` is called with each that is handed out. Without `move` they wait behind everybody, as vLLM puts them.
    Finding the place without `last` takes a look at each free block that holds nothing.
    """
    pool.touch(blocks)
    pool.unpin_blocks(blocks, on_reuse)
    if not move:
        return
    queue = pool.free_block_queue
    for block in blocks:
        queue.remove(block)
    if last is not None:
        follower = last.next_free_block
    else:
        cached = (block for block in queue.iter_blocks_after(None) if block.block_hash is not None)
        follower = next(cached, queue.fake_free_list_tail)
    assert follower is not None
    assert follower.prev_free_block is not None
    previous = follower.prev_free_block
    for block in (*blocks, follower):
        previous.next_free_block, block.prev_free_block = block, previous
        previous = block
    queue.num_free_blocks += len(blocks)


def let_overtake(
    pool: BlockPool, first: KVCacheBlock, last: KVCacheBlock, may: Callable[[KVCacheBlock], bool], max_blocks: int
) -> None:
    """Put the free blocks behind `last` in front of `first`: up to the first that may not, and at most `max_blocks`.

    before   [hold nothing ...)[first ... last][a ... b)[cached .....)
    after    [hold nothing ...)[a ... b)[first ... last][cached .....)
    """
    behind = itertools.takewhile(may, pool.free_block_queue.iter_blocks_after(last))
    moved = list(itertools.islice(behind, max_blocks))
    if not moved:
        return
    previous, follower = first.prev_free_block, moved[-1].next_free_block
    assert previous is not None
    assert follower is not None
    for one, other in ((previous, moved[0]), (moved[-1], first), (last, follower)):
        one.next_free_block, other.prev_free_block = other, one
