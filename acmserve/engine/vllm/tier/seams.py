"""The private parts of vLLM's OffloadingConnector that the tier touches.

Where one does not fit, the server starts without the tier, and the log names it. Everything else works as without.
"""

from __future__ import annotations

from acmserve.seams import Seam, attributes, methods

_SCHEDULER = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler"
_MANAGER = "vllm.v1.kv_offload.cpu.manager:CPUOffloadingManager"
_POLICY = "vllm.v1.kv_offload.cpu.policies.lru:LRUCachePolicy"
_SPEC = "vllm.v1.kv_offload.cpu.spec:CPUOffloadingSpec"

TIER_SEAMS = (
    *attributes(f"{_SCHEDULER}:OffloadingConnectorScheduler", "manager _req_status _current_batch_jobs_to_flush"),
    *attributes(f"{_SCHEDULER}:RequestOffloadState", "req group_states"),
    *attributes(f"{_SCHEDULER}:RequestGroupState", "offload_keys block_ids next_stored_chunk_idx"),
    *attributes(_MANAGER, "_policy _num_evictable_cache_chunks"),
    *methods(_MANAGER, _free_chunk="self chunk"),
    *methods(_POLICY, get="self key", remove="self key"),
    *methods(_SPEC, __init__="self config", get_worker="self kv_caches"),
    *attributes(_SPEC, "num_chunks"),
    *attributes("vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector", "scheduler"),
    Seam("vllm.v1.kv_offload.base:make_offload_key", ("block_hash", "group_idx")),
)
