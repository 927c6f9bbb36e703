"""TieredConnector: ours, with vLLM's OffloadingConnector as a child. KV that left the pool comes back from host memory.

    a prefix   our moves come first. Where none begins behind vLLM's own hit, the child extends the hit
    a source   reads bring the missing blocks back before the moves are made (`scheduling/tier/reads.py`)
    a block    is stored by the child under its hash, which has the lineage of moved KV in it

`--kv-offloading-size` puts this class in the place of `AcmConnector` (`engine/vllm/install.py`). A model that the tier
is not for is served as without it, and the log says why.

Loads of the child end between steps. A request that was loaded so goes on from the waiting queue, and leaps from there
as a running one does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from acmserve.engine.plugin.connector import AcmConnector
from acmserve.engine.plugin.tiered_metrics import TieredPromMetrics, TieredStats
from acmserve.engine.scheduling.tier.reads import TierReads
from acmserve.engine.vllm.tier.cpu_tier import CpuTier, prom_metrics_below, why_no_tier
from acmserve.engine.worker.messages import StepMetadata

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorWorkerMetadata,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from acmserve.engine.scheduling.step import SchedulerStep

logger = logging.getLogger(__name__)


class TieredConnector(AcmConnector):
    """See the module. `tier` is None where the model gets none."""

    _stats_class = TieredStats

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.tier: CpuTier | None = None
        self._loading: set[str] = set()
        self._under_way: set[str] = set()
        reason = why_no_tier(vllm_config, kv_cache_config)
        num_gib = vllm_config.cache_config.kv_offloading_size
        if reason is not None or num_gib is None:
            logger.warning("acmserve: no KV is kept in host memory: %s", reason or "no --kv-offloading-size")
            return
        self.tier = CpuTier(vllm_config, role, kv_cache_config, num_gib)

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """As ours. The tier is asked where a source is looked for, and told where one is forgotten."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self.tier is not None:
            self.tier.connector.bind_kv_cache_manager(kv_cache_manager)
            self.reads = TierReads(kv_cache_manager.block_pool, self.live, self.tier)
            self.arrivals.reads = self.reads
            self.evictions.tell(self.reads.forget)
            self.move_executor.cache.holds_below = self.tier.holds

    def attach(self) -> SchedulerStep:
        """As ours, with reads."""
        step = super().attach()
        if self.tier is not None:
            step.reads = self.reads
        return step

    def on_new_request(self, request: Request) -> None:
        """The plan first: the child makes its keys of the block hashes."""
        super().on_new_request(request)
        if self.tier is not None:
            self.tier.connector.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Our copies behind the prefix hit. Where there are none, what the tier has there.

        Not for a background request: what it takes of the pool is bounded, and a load is not.
        """
        tier = self.tier
        if tier is None:
            return super().get_num_new_matched_tokens(request, num_computed_tokens)
        self._loading.discard(request.request_id)
        is_read = self.reads.is_read(request.request_id)
        num_copied, _ = (0, False) if is_read else super().get_num_new_matched_tokens(request, num_computed_tokens)
        session = self.live.get(request.request_id)
        if num_copied is None or num_copied > 0 or (session is not None and session.precompute):
            return num_copied, False
        tier.follow(request)
        num_loaded, is_async = tier.connector.get_num_new_matched_tokens(request, num_computed_tokens)
        if is_read and num_loaded == 0:
            self.reads.end(request.request_id)
            return None, False
        if num_loaded:
            self._loading.add(request.request_id)
            if is_read:
                self.reads.on_asked(request.request_id)
        return num_loaded, is_async

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """A waiting request was admitted, perhaps to be loaded first. What is loaded counts as kept, and as loaded."""
        tier, request_id = self.tier, request.request_id
        self._under_way.discard(request_id)
        if tier is not None and num_external_tokens and request_id in self._loading:
            self._loading.discard(request_id)
            self._under_way.add(request_id)
            tier.connector.update_state_after_alloc(request, blocks, num_external_tokens)
            if self.reads.is_read(request_id):
                self.reads.on_admitted(request_id)
            session = self.live.get(request_id)
            if session is not None:
                # vLLM computes the last token of a prompt that was loaded whole.
                num_hit = min(session.num_hit + num_external_tokens, request.num_tokens - 1)
                session.receipt_builder.add_loaded([(session.num_hit, num_hit)])
                session.num_hit = num_hit
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        """Our copies, and the child's transfers."""
        metadata = super().build_connector_meta(scheduler_output)
        if self.tier is not None:
            self.tier.before_step(scheduler_output)
            metadata.below = self.tier.connector.build_connector_meta(scheduler_output)
        return metadata

    def has_pending_push_work(self) -> bool:
        """Whether the engine has to go on stepping, for transfers."""
        pending = self.tier is not None and self.tier.connector.has_pending_push_work()
        return pending or bool(super().has_pending_push_work())

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Transfers that are through. A model with a tier has no transitions to confirm."""
        if self.tier is None:
            super().update_connector_output(connector_output)
        else:
            self.tier.connector.update_connector_output(connector_output)
            self.tier.settle()

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Its last blocks that are computed are stored, under the hashes that it has now."""
        if self.tier is not None:
            self.tier.follow(request)
            self.tier.drop_uncomputed(request, self._groups.hash_block_size)
            self.tier.connector.request_finished_all_groups(request, block_ids)
            self.reads.on_finished(request.request_id)
            self._loading.discard(request.request_id)
            session = self.live.get(request.request_id)
            if session is not None and request.request_id in self._under_way:
                # Aborted before it ran. What it would have been loaded with was served to others.
                session.unrecorded = True
            self._under_way.discard(request.request_id)
        return super().request_finished_all_groups(request, block_ids)

    def reset_cache(self) -> bool:
        """Nothing that was served is to be found again: not in the tier, either."""
        if self.tier is not None:
            self.tier.reset()
        return super().reset_cache()

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> Any:
        """For vLLM's metrics: where the tokens behind a prefix hit came from. Asked right behind the allocation."""
        if self.tier is not None and request.request_id in self._under_way:
            return self.tier.connector.get_external_cache_hit_sources(request, num_external_tokens)
        return super().get_external_cache_hit_sources(request, num_external_tokens)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Ours, with the child's."""
        below = None if self.tier is None else self.tier.connector.get_kv_connector_stats()
        if below is not None and not below.is_empty():
            assert isinstance(self._stats, TieredStats)
            self._stats.add_below(below.to_dict())
        return super().get_kv_connector_stats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        """Our counters, and vLLM's of the tier."""
        kinds = (metric_types, labelnames, per_engine_labelvalues)
        return TieredPromMetrics(
            super().build_prom_metrics(vllm_config, *kinds), prom_metrics_below(vllm_config, *kinds)
        )

    def shutdown(self) -> None:
        """The scheduler or the worker ends."""
        super().shutdown()
        if self.tier is not None:
            self.tier.connector.shutdown()

    def check_integrity(self) -> None:
        """As ours, with the tier."""
        super().check_integrity()
        if self.tier is not None:
            self.reads.check_integrity()
            self.tier.check_integrity()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Worker: the KV caches exist."""
        super().register_kv_caches(kv_caches)
        if self.tier is not None:
            self.tier.connector.register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Worker: a step begins."""
        super().bind_connector_metadata(connector_metadata)
        if self.tier is not None:
            self.tier.connector.bind_connector_metadata(_below(connector_metadata))

    def clear_connector_metadata(self) -> None:
        """Worker: a step ends."""
        super().clear_connector_metadata()
        if self.tier is not None:
            self.tier.connector.clear_connector_metadata()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Worker: what is stored of blocks that were handed out again goes first."""
        if self.tier is not None:
            self.tier.connector.handle_preemptions(_below(kv_connector_metadata))

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Worker: start the child's transfers, then carry our copies out."""
        if self.tier is not None:
            self.tier.connector.start_load_kv(forward_context, **kwargs)
        super().start_load_kv(forward_context, **kwargs)

    def wait_for_save(self) -> None:
        """Worker: the child notes what the next step stores."""
        if self.tier is not None:
            self.tier.connector.wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Worker: the requests that were loaded."""
        if self.tier is None:
            return None, None
        sent, loaded = self.tier.connector.get_finished(finished_req_ids)
        return sent, loaded

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Worker: the transfers that are through."""
        if self.tier is None:
            return super().build_connector_worker_meta()
        return self.tier.connector.build_connector_worker_meta()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """The child's: a block lies in one piece."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

        layout: str | None = OffloadingConnector.get_required_kvcache_layout(vllm_config)
        return layout


def _below(metadata: KVConnectorMetadata) -> KVConnectorMetadata:
    assert isinstance(metadata, StepMetadata)
    assert metadata.below is not None
    return metadata.below
