"""The tier below the KV blocks: vLLM's OffloadingConnector, with the few things that it does not offer.

vLLM stores every whole block of a request in host memory, under the block's hash. It loads blocks behind a prefix hit.
A block with moved KV has the lineage in its hash, so no exact request has that key.

    request.block_hashes   [ h0 | h1 | h2 | h3 ]           our hasher may make these anew, from some block on
    the tier's own list    [ h0 | h1 | g2 | g3 ]           made when the request arrived, and never again
                                     ^ `follow` drops the list from here on

Decision: private parts of the child are touched here only. `follow` keeps its lists of keys what the hashes are.
`forget` takes keys out. Neither has a public call. What is written or read right then goes when that is through.

Does not know sessions, sources or plans.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from acmserve.engine.vllm.tier.seams import TIER_SEAMS
from acmserve.errors import IntegrityError
from acmserve.seams import broken_seams

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.v1.core.kv_cache_utils import BlockHash
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_GIB = 2**30


def why_no_tier(config: VllmConfig, kv_cache: KVCacheConfig) -> str | None:
    """Why this engine gets no tier. None where it gets one."""
    if broken := broken_seams(TIER_SEAMS):
        return "; ".join(broken)
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = [group.kv_cache_spec for group in kv_cache.kv_cache_groups]
    if len(groups) != 1:
        return f"the model has {len(groups)} KV cache groups, not one of full attention"
    spec = groups[0]
    if type(spec) is not FullAttentionSpec or spec.sliding_window or spec.attention_chunk_size:
        return f"the model's KV cache group is of another kind than full attention ({type(spec).__name__})"
    parallel, drafts = config.parallel_config, config.speculative_config
    if not config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    if parallel.pipeline_parallel_size > 1:
        return f"the model stands in {parallel.pipeline_parallel_size} stages"
    if parallel.decode_context_parallel_size > 1:
        return f"a context stands on {parallel.decode_context_parallel_size} ranks"
    if drafts is not None and drafts.use_eagle():
        return f"the drafter has KV of its own ({drafts.method})"
    return None


def config_below(config: VllmConfig, num_gib: float) -> VllmConfig:
    """The configuration that vLLM's own connector of the tier is made with."""
    from vllm.config import KVTransferConfig
    from vllm.platforms import current_platform

    extra: dict[str, Any] = {"cpu_bytes_to_use": int(num_gib * _GIB), "offload_prompt_only": False}
    if current_platform.is_cpu():
        extra |= {"spec_name": "HostTierSpec", "spec_module_path": "acmserve.engine.vllm.tier.host_spec"}
    below = copy.copy(config)
    # Events of the tier would name blocks with moved KV.
    below.kv_events_config = None
    below.kv_transfer_config = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id=config.kv_transfer_config.engine_id,
        kv_connector_extra_config=extra,
    )
    return below


def stats_below(data: dict[str, Any] | None) -> KVConnectorStats:
    """What the tier counted, of its own data. None: nothing yet."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

    stats = OffloadingConnector.build_kv_connector_stats(copy.deepcopy(data))
    assert stats is not None
    return stats


def prom_metrics_below(config: VllmConfig, *kinds: Any) -> KVConnectorPromMetrics:
    """vLLM's metrics of the tier."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

    num_gib = config.cache_config.kv_offloading_size or 0.0
    return OffloadingConnector.build_prom_metrics(config_below(config, num_gib), *kinds)


class CpuTier:
    """See the module. `connector` is vLLM's, in the scheduler or in a worker."""

    def __init__(self, config: VllmConfig, role: KVConnectorRole, kv_cache: KVCacheConfig, num_gib: float) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

        self.connector = OffloadingConnector(config_below(config, num_gib), role, kv_cache)
        self._doomed: set[Any] = set()

    def holds(self, key: bytes) -> bool:
        """Whether the tier can be read for this block hash, soon. Another thread may ask: it is one look."""
        return self._chunk(_tier_key(key)) is not None

    def follow(self, request: Request) -> None:
        """Drop the keys of `request` that its block hashes differ from. Chain hashes: the first one that differs."""
        status = self.connector.scheduler._req_status.get(request.request_id)
        if status is None:
            return
        (group,) = status.group_states
        keys, hashes = group.offload_keys, request.block_hashes
        known = min(len(keys), len(hashes))
        if known == len(keys) and (not known or keys[-1] == _tier_key(hashes[known - 1])):
            return
        first = bisect_left(range(known), True, key=lambda index: keys[index] != _tier_key(hashes[index]))
        self._cut(group, first)

    def drop_uncomputed(self, request: Request, block_size: int) -> None:
        """Take from a request that ends the blocks that it did not compute whole. vLLM stores the rest.

            blocks   0    1    2    3        computed_tokens = 2.5 blocks, or 0 behind a preemption
            stored   0    1    -    -

        vLLM takes each request that was not aborted for computed to its prompt's end. A background one may end before.
        The blocks of a preempted one are others' by now.
        """
        status = self.connector.scheduler._req_status.get(request.request_id)
        if status is not None:
            for group in status.group_states:
                del group.block_ids[request.num_computed_tokens // block_size :]

    def before_step(self, output: Any) -> None:
        """Follow what is scheduled. A running request that leapt may be sent as new, with its whole block table."""
        statuses = self.connector.scheduler._req_status
        for new in output.scheduled_new_reqs:
            for group in statuses[new.req_id].group_states:
                group.block_ids.clear()
        for request_id in output.num_scheduled_tokens:
            self.follow(statuses[request_id].req)

    def forget(self, keys: Sequence[bytes]) -> None:
        """Take these block hashes out: what is stored, what is being stored, and what a finished request would store.

        A live one has other hashes from here on (`follow`), or was sent the text by somebody else.
        """
        if not keys:
            return
        gone = {_tier_key(key) for key in keys}
        for status in self.connector.scheduler._req_status.values():
            if not status.req.is_finished():
                continue
            for group in status.group_states:
                first = next((index for index, key in enumerate(group.offload_keys) if key in gone), None)
                if first is not None:
                    self._cut(group, first)
        self._doomed |= gone
        self.settle()

    def reset(self) -> None:
        """Take everything out. vLLM cannot reset a cache twice between two steps while transfers are under way.

        reset         the transfers under way are to be flushed in the next step
        reset again   vLLM wants none to be there: they are kept aside, and put back behind it
        """
        scheduler = self.connector.scheduler
        to_flush, scheduler._current_batch_jobs_to_flush = scheduler._current_batch_jobs_to_flush, set()
        self.connector.reset_cache()
        scheduler._current_batch_jobs_to_flush |= to_flush
        self.settle()

    def settle(self) -> None:
        """Take out what was forgotten and is through."""
        self._doomed = {key for key in self._doomed if not self._remove(key)}

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when something forgotten stays that nobody reads or writes."""
        idle = [key for key in self._doomed if (chunk := self._chunk(key)) is None or chunk.ref_cnt == 0]
        if idle:
            raise IntegrityError(f"tier: {len(idle)} forgotten keys are still there")

    def _chunk(self, key: Any) -> Any:
        return self.connector.scheduler.manager._policy.get(key)

    def _remove(self, key: Any) -> bool:
        """Whether nothing is left under `key`. What is read or written right now is."""
        manager, chunk = self.connector.scheduler.manager, self._chunk(key)
        if chunk is None:
            return True
        if chunk.ref_cnt:
            return False
        manager._policy.remove(key)
        manager._num_evictable_cache_chunks -= 1
        manager._free_chunk(chunk)
        return True

    @staticmethod
    def _cut(group: Any, first: int) -> None:
        del group.offload_keys[first:]
        group.next_stored_chunk_idx = min(group.next_stored_chunk_idx, first)


def _tier_key(key: bytes) -> Any:
    return key + _group_suffix()


@cache
def _group_suffix() -> bytes:
    """What `make_offload_key` puts behind a block hash of the one group. Thousands of keys are made in a step."""
    from vllm.v1.core.kv_cache_utils import BlockHash
    from vllm.v1.kv_offload.base import make_offload_key

    return bytes(make_offload_key(BlockHash(b""), 0))


def read_request(request_id: str, keys: Iterable[bytes], block_size: int, waiter: Request) -> Request:
    """A request that is loaded and never computed: one block for each of `keys`, and a token behind them.

    vLLM looks for its blocks under these hashes, wherever they stood in the sequence that they are of. It stands where
    `waiter` stands in the queue. Its hashes are not of its tokens, so no event tells of them.
    """
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.kv_cache_utils import BlockHash
    from vllm.v1.request import Request

    from acmserve.engine.vllm.hidden_hasher import HiddenHasher

    hashes: list[BlockHash] = [BlockHash(key) for key in keys]
    request = Request(
        request_id=request_id,
        prompt_token_ids=[0] * (len(hashes) * block_size + 1),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        client_index=waiter.client_index,
        arrival_time=waiter.arrival_time,
        priority=waiter.priority,
    )
    request.block_hashes[:] = hashes
    request._block_hasher = HiddenHasher(block_size)
    return request
