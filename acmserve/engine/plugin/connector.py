"""AcmConnector: acmserve's half inside vLLM's scheduler and workers, behind vLLM's KV connector interface.

Scheduler side: a request arrives (`on_new_request`). The sources of its session become a plan, at once or beside the
scheduler, and its block hashes get the plan's lineage. The request finishes (`request_finished_all_groups`): what it
computed becomes a source, and the receipt goes out with the answer. In between `MoveExecutor` works, called by the
scheduler mixin. The mixin is missing in a scheduler that is not ours, and for a connector inside a MultiConnector. Then
this connector answers no session and says so in the receipt.

Worker side: see `worker_half.py`.

A session request never fails because of this module: what cannot be moved is computed.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.plugin.metrics import AcmPromMetrics
from acmserve.engine.plugin.parent_watch import end_with_parent
from acmserve.engine.plugin.worker_half import WorkerHalf
from acmserve.engine.requests.admission import may_be_source
from acmserve.engine.requests.draft_pace import DraftPace
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.served_source import is_state_at_end, plan_source, plan_tail_key, with_tail
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.requests.source_store import SourceStore, StoreLimits
from acmserve.engine.scheduling.arrivals import Arrivals
from acmserve.engine.scheduling.background_prefill import BackgroundPrefill
from acmserve.engine.scheduling.edit_boundaries import EditBoundaryKeeper
from acmserve.engine.scheduling.forgetting import withdraw
from acmserve.engine.scheduling.key_evictions import KeyEvictions
from acmserve.engine.scheduling.leaps.answer_states import AnswerStates
from acmserve.engine.scheduling.move_executor import MoveExecutor
from acmserve.engine.scheduling.step import SchedulerStep
from acmserve.engine.scheduling.transition_keeper import TransitionKeeper
from acmserve.engine.vllm import block_pool, sparse_groups
from acmserve.engine.vllm.hooks import READY_AT
from acmserve.engine.vllm.kv_events import hide_moved_blocks
from acmserve.engine.vllm.model.media_rule import MediaRule
from acmserve.engine.worker.copies import StepCopies, StepCopy
from acmserve.engine.worker.exit_rule import why_no_exit
from acmserve.engine.worker.kv_mover import Abilities
from acmserve.engine.worker.messages import Handshake, StepMetadata, TransitionsRecorded
from acmserve.engine.worker.pass_rule import max_pass_tokens, why_step_by_step
from acmserve.plan.pacing.arrival_flag import server_flag_name
from acmserve.plan.request import is_background

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)
_start_log = logging.getLogger(f"vllm.{__name__}")
"""For what a start says. A server shows INFO of vLLM's own loggers alone."""

_NOTHING = StepCopies()
NOT_ATTACHED = "scheduler: acmserve is not attached to it (another KV connector wraps ours, or the plugin is off)"


class AcmConnector(WorkerHalf, SupportsHMA):
    """See the module. `live`, `evictions`, `move_executor` and `precompute` exist on the scheduler side only."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = self.config
        self.attached = False
        self._copies: list[StepCopy] = []
        limits = StoreLimits(config.max_sessions, config.max_sources_per_session, config.max_source_bytes)
        self.store = SourceStore(limits, lambda source: self._release(source.kept_keys))

    @property
    def requires_kv_delivery(self) -> bool:
        """Retained KV is best effort: a preempted request may finish and lose it."""
        return False

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """vLLM built its cache manager: this scheduler's `MoveExecutor` can be built on it."""
        super().bind_kv_cache_manager(kv_cache_manager)
        end_with_parent()
        hide_moved_blocks(kv_cache_manager.block_pool)
        specs = [group.kv_cache_spec for group in self._kv_cache_config.kv_cache_groups]
        self._groups = KVGroups.of_engine(specs, kv_cache_manager.block_pool.hash_block_size)
        self.live = LiveRequests()
        exit_refusal = why_no_exit(self._vllm_config, specs)
        self.precompute = BackgroundPrefill(kv_cache_manager, self._groups.hash_block_size, self.config, exit_refusal)
        engine_id = getattr(self._vllm_config.kv_transfer_config, "engine_id", None)
        if engine_id is not None:
            self.precompute.exits.watch_server(server_flag_name(engine_id))
        parts = (kv_cache_manager, self._groups, self.live)
        max_bytes = self.config.max_boundary_bytes
        self.transitions = TransitionKeeper(*parts, max_bytes, lambda: self.abilities.move_refusal is None)
        self.evictions = KeyEvictions(kv_cache_manager.block_pool, len(specs), self.transitions.index.forget)
        self.abilities = self.abilities.both(Abilities(pass_refusal=why_step_by_step(self._vllm_config, specs)))
        max_tokens = partial(max_pass_tokens, self._vllm_config, lambda: self.abilities.pass_refusal)
        self.move_executor = MoveExecutor(*parts, self.precompute.blocks, self.transitions.index.find_path, max_tokens)
        states = self._groups.state_rules if self.abilities.move_refusal is None else None
        rules = sparse_groups.boundary_rules(kv_cache_manager, states)
        is_kept = partial(sparse_groups.is_kept, kv_cache_manager)
        self.boundaries = EditBoundaryKeeper(rules, max_bytes, kv_cache_manager.kv_cache_config.num_blocks, is_kept)
        self.answers = AnswerStates(*parts, self.boundaries.num_left, lambda: self.abilities.move_refusal is None)
        rooms = (self.config, self.store, self.live, self.evictions, self.move_executor, self.precompute)
        media = MediaRule.of_model(self._vllm_config.model_config)
        thresholds = self.config.thresholds(self._vllm_config.model_config.hf_config.to_dict())
        more = (self._vllm_config.num_prefill_lookahead_tokens, media, thresholds)
        self.arrivals = Arrivals(*rooms, block_pool.block_hash_function(self._vllm_config), *more)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """The workers report what they are able to do, each by (stage, rank). The weakest decides.

        Inside a MultiConnector this may be what another connector's workers say. That is not for us.
        """
        for worker in metadata.values():
            if isinstance(worker, Handshake):
                self.abilities = self.abilities.both(worker.abilities)
        _start_log.info("acmserve: background work ends in a layer: %s", self.precompute.exits.refusal or "yes")
        _start_log.info("acmserve: one step for each hole: %s", self.abilities.pass_refusal or "no, one for all")
        if self.abilities.move_refusal:
            logger.warning("acmserve: moves are off, every answer is exact: %s", self.abilities.move_refusal)

    def on_new_request(self, request: Request) -> None:
        """Plan a session request. A request without session is not touched."""
        refusal = (None if self.attached else NOT_ATTACHED) or self.abilities.copy_refusal
        able = self.abilities
        self.arrivals.add(request, refusal, refusal or able.move_refusal, able.max_rotations)
        session = self.live.get(request.request_id)
        if session is not None and self.attached:
            self.boundaries.add(session, request)
        self.precompute.on_arrival(request, session, getattr(request, READY_AT, None))

    def on_queued(self, request: Any) -> None:
        """A request arrived that the scheduler does not know yet. Called by another thread, also during a step."""
        if self.attached and self.precompute.exits.is_watching and not is_background(request.sampling_params):
            self.precompute.exits.on_queued()

    def on_adapter_load(self, lora: Any) -> None:
        """vLLM is about to load an adapter (a `LoRARequest`)."""
        self.arrivals.loads.on_load(lora)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens to be copied behind the prefix hit of a waiting request. They are always loaded in the same step."""
        num_copied = self.move_executor.on_lookup(request.request_id, num_computed_tokens)
        if num_copied is not None:
            self.boundaries.on_lookup(request.request_id, num_computed_tokens + num_copied)
        return num_copied, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """A waiting request was admitted."""
        watching = self.precompute.blocks.watching
        precompute = self.precompute.on_admitted(request.request_id, blocks.blocks[0]) if watching else []
        self.move_executor.on_admitted(request.request_id, precompute)

    def attach(self) -> SchedulerStep:
        """The scheduler mixin is there: from here on sessions are answered."""
        self.attached = True
        rooms = (self.evictions, self.move_executor, self.precompute, self.boundaries, self.answers, self.transitions)
        return SchedulerStep(
            self.live,
            self.arrivals.plans,
            *rooms,
            self.arrivals.on_planned,
            self._copies.extend,
            self.reset_cache,
            DraftPace(self.live, self._groups.hash_block_size, self.config.draft_chunk_tokens),
        )

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        """Hand the step's copies over. Most steps have none."""
        has_passes = self.move_executor.has_passes
        flags = () if has_passes else self.precompute.exits.take_names()
        if not (self._copies or has_passes or self.transitions.is_noted):
            return StepMetadata(_NOTHING, flags)
        copies, self._copies[:] = tuple(self._copies), ()
        return StepMetadata(StepCopies(copies, *self.transitions.take(), self.move_executor.take_passes()), flags)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What all workers recorded in a step counts from here on."""
        if isinstance(recorded := connector_output.kv_connector_worker_meta, TransitionsRecorded):
            self.transitions.index.confirm(recorded.facts)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Record the sequence as a source and hand out the receipt."""
        self.precompute.on_finished(request.request_id, block_ids[0] if block_ids else ())
        session = self.live.remove(request.request_id)
        if session is None:
            return False, None
        self.arrivals.plans.cancel(request.request_id)
        self.precompute.remove(request.request_id)
        is_source = not withdraw(session, request, self.evictions) and not session.unrecorded and may_be_source(request)
        if is_source and self.attached and self.abilities.copy_refusal is None:
            self._record_source(session, request, block_ids)
        self._release(tuple(state.key for state in session.states_left))
        self.transitions.drop(request.request_id)
        self.move_executor.remove(request.request_id)
        if not (session.precompute or session.draft):
            self._stats.add(session.settle())
        answer = session.answer()
        self.boundaries.remove(request.request_id)
        return False, answer

    def _record_source(self, session: SessionRequest, request: Request, block_ids: tuple[list[int], ...]) -> None:
        """Source = the tokens whose KV is computed. Its partial block stays where it can be found again."""
        source = plan_source(session, request, self._groups.hash_block_size, self.config.min_move_tokens)
        if source is None:
            return
        if self.config.keep_tail:
            cache, has_state = self.move_executor.cache, bool(self._groups.recurrent)
            cache.keep_windows(request.request_id, block_ids, source.block_hashes)
            may = not has_state or (self.abilities.move_refusal is None and is_state_at_end(request, source))
            key = plan_tail_key(session, source) if may and source.num_tokens % source.block_size else None
            if key is not None and cache.keep_tail(request.request_id, block_ids, key, source.num_tokens):
                source = with_tail(source, key, has_state=has_state)
                self.transitions.finish(request.request_id, source)
        self.store.add(session.owner, source, session.account)

    def _release(self, keys: tuple[bytes, ...]) -> None:
        for key in (key for key in keys if not self.store.has_tail(key)):
            block_pool.release_tail(self.move_executor.pool, key, len(self._groups.groups))
            self.transitions.index.forget([key])

    def reset_cache(self) -> bool:
        """The engine's prefix cache was reset: what the sources name is gone."""
        self.store.clear()
        self.transitions.index.clear()
        return True

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Token counts, or a worker's moves, since the last call."""
        if self.role is KVConnectorRole.SCHEDULER and self.precompute.blocks.watching:
            self._stats.add_precomputed(self.precompute.take_counts())
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, self._stats_class()
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Rebuild the counts in the API server's process."""
        return cls._stats_class(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        """The counters on `/metrics`."""
        return AcmPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """The scheduler or the worker ends."""
        if self.role is KVConnectorRole.SCHEDULER:
            self.arrivals.plans.stop()
            self.precompute.exits.close()
        else:
            self.end_worker()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when the store, the moves or the background requests are off, between steps."""
        rooms: tuple[Any, ...] = (self.store, self.live, self.arrivals, self.evictions, self.move_executor)
        for room in (*rooms, self.precompute, self.boundaries, self.answers, self.transitions):
            room.check_integrity()
