"""KV events of vLLM's block pool, without those of moved KV.

    BlockStored    [ exact )[ moved, and all behind it )      a router learns of the first part alone
                            ^ first lineage mark

A cache-aware router reads which tokens an engine has cached, and sends it the prompts that begin with them. Under a
lineage those tokens answer one session alone. For a router that hashes the tokens itself the event would be wrong, so
there is none. `BlockRemoved` of a block that was never announced stays: what it says is true.

A forgotten request announces nothing more, for its text was redacted. Neither does a read of the tier, which has none.

Decision: one pool is wrapped, where events are on, and not vLLM's class. An event of no block is left out as the queue
is read, for vLLM appends whatever was built.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from acmserve.engine.vllm.hidden_hasher import HiddenHasher
from acmserve.engine.vllm.lineage_hasher import LineageHasher

if TYPE_CHECKING:
    from vllm.distributed.kv_events import BlockStored, KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

_LISTS = {"block_hashes", "extra_keys_list", "lookahead_token_ids"}
"""What an event has of each block. The last is of vLLM 0.33, and None there for most models."""


def hide_moved_blocks(pool: BlockPool) -> None:
    """Publish no event of a block that `pool` holds under a lineage."""
    if pool.enable_kv_cache_events:
        pool._build_block_stored_event = functools.partial(_build_exact, pool, pool._build_block_stored_event)
        pool.cache_partial_block = functools.partial(_cache_partial, pool, pool.cache_partial_block)
        pool.take_events = functools.partial(_take_named, pool.take_events)


def _own_from(request: Request) -> int | None:
    """The first token from which on hashes of `request` are not vLLM's. None where all of them are."""
    hasher = request._block_hasher
    return hasher.own_from if isinstance(hasher, LineageHasher | HiddenHasher) else None


def _build_exact(pool: BlockPool, build: Any, request: Request, **fields: Any) -> BlockStored:
    """The event of the blocks whose hashes are vLLM's: in front of the first lineage mark, in a first load.

    It is the one of a request that ends there. vLLM's lists have nothing of a block that a window left out. Its token
    ids are those of the whole stretch.
    """
    if (first := _own_from(request)) is not None:
        start, size, unit = fields["start_token_idx"], fields["block_size"], pool.hash_block_size
        exact = set(map(maybe_convert_block_hash, request.block_hashes[start // unit : first // unit]))
        num_blocks = sum(block_hash in exact for block_hash in fields["block_hashes"])
        for name in _LISTS & fields.keys():
            fields[name] = fields[name] and fields[name][:num_blocks]
        fields["end_token_idx"] = min(fields["end_token_idx"], max(first // size * size, start))
    event: BlockStored = build(request, **fields)
    return event


def _cache_partial(
    pool: BlockPool, cache: Any, request: Request, block: Any, num_tokens: int, *others: Any, **fields: Any
) -> Any:
    """Cache a part of a block. vLLM builds the event of it in there, maybe behind that of what the block held."""
    from vllm.distributed.kv_events import BlockStored

    num_before, first = len(pool.kv_event_queue), _own_from(request)
    key = cache(request, block, num_tokens, *others, **fields)
    if first is not None and num_tokens > first:
        told = pool.kv_event_queue[num_before:]
        pool.kv_event_queue[num_before:] = [event for event in told if not isinstance(event, BlockStored)]
    return key


def _take_named(take: Any) -> list[KVCacheEvent]:
    from vllm.distributed.kv_events import BlockStored

    return [event for event in take() if not isinstance(event, BlockStored) or event.block_hashes]
