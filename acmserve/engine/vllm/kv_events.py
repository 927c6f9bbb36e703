"""KV events of vLLM's block pool, without those of moved KV.

    BlockStored    [ exact )[ moved, and all behind it )      a router learns of the first part alone
                            ^ first lineage mark

A cache-aware router reads which tokens an engine has cached, and sends it the prompts that begin with them. Under a
lineage those tokens answer one session alone. For a router that hashes the tokens itself the event would be wrong, so
there is none. `BlockRemoved` of a block that was never announced stays: what it says is true.

Decision: one pool is wrapped, where events are on, and not vLLM's class. An event of no block is left out as the queue
is read, for vLLM appends whatever was built.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from acmserve.engine.vllm.lineage_hasher import LineageHasher

if TYPE_CHECKING:
    from vllm.distributed.kv_events import BlockStored, KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request


def hide_moved_blocks(pool: BlockPool) -> None:
    """Publish no event of a block that `pool` holds under a lineage."""
    if pool.enable_kv_cache_events:
        pool._build_block_stored_event = functools.partial(_build_exact, pool._build_block_stored_event)
        pool.take_events = functools.partial(_take_named, pool.take_events)


def _build_exact(build: Any, request: Request, **fields: Any) -> BlockStored:
    """The event of the blocks whose hashes are vLLM's: in front of the first lineage mark, in a first load."""
    hasher = request._block_hasher
    if isinstance(hasher, LineageHasher) and (first := hasher.own_from) is not None:
        start, size = fields["start_token_idx"], fields["block_size"]
        num_blocks = max(first // size - start // size, 0)
        fields["block_hashes"] = fields["block_hashes"][:num_blocks]
        fields["extra_keys_list"] = fields["extra_keys_list"][:num_blocks]
        fields["end_token_idx"] = min(fields["end_token_idx"], start + num_blocks * size)
    event: BlockStored = build(request, **fields)
    return event


def _take_named(take: Any) -> list[KVCacheEvent]:
    from vllm.distributed.kv_events import BlockStored

    return [event for event in take() if not isinstance(event, BlockStored) or event.block_hashes]
