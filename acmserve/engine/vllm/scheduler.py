"""The scheduler mixin: small overrides around the scheduler that vLLM chose. The work is done by a `StepHooks`.

    override                        what happens there
    schedule                        background requests are held back. Moves are prepared before anything is allocated
    _handle_blocked_waiting_request a request whose plan is in the making is passed over
    _reserve_prefill_lookahead      a prefill chunk ends where a move begins
    _build_kv_connector_meta        the step's moves become copies, or are rolled back
    _preempt_request                the plan of a preempted request is armed again
    update_from_output              a background chunk that was left is taken back
                                    the receipt goes out with every output of a session request, and of the log
                                    probabilities of a prompt only those that are wanted
    reset_prefix_cache              a reset cache has no sources

Does not know sessions, plans or receipts: `hooks.py` names all that is asked.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.hooks import ConnectorHooks, Padding, StepHooks, StepLeft
from acmserve.plan.request import SCORED_TOKENS

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    # The scheduler that vLLM chose stands behind the mixin. It is known when the two are composed.
    from vllm.v1.core.sched.scheduler import Scheduler as _Base
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.request import Request
else:
    _Base = object


logger = logging.getLogger(__name__)
_ROWS = ("logprob_token_ids", "logprobs", "selected_token_ranks")


class MoveSchedulerMixin(_Base):
    """See the module. Without hooks, for another connector or none, every override is vLLM's own method."""

    resend_leapt = True
    """Negative control of the simulator: without resending, runner V2 works on with the count from before the leap."""
    flag_sync_loads = True
    """Negative control of the simulator: without the flag vLLM copies after the forward pass."""

    mind_slots = True
    """Negative control of the simulator: without it blocks are pinned for requests that this step cannot admit."""

    _hooks: StepHooks | None = None
    _is_idle = True
    """Whether the step that is being scheduled has nothing of the hooks. Asked once: it is a share of every step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        connector = getattr(self, "connector", None)
        if isinstance(connector, ConnectorHooks):
            self._hooks = connector.attach()
        elif any(isinstance(inner, ConnectorHooks) for inner in getattr(connector, "sub_connectors", ())):
            logger.warning("acmserve is off: another KV connector wraps it. Every answer is exact.")

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        hooks = self._hooks
        self._is_idle = hooks is None or hooks.is_idle
        if hooks is None or self._is_idle:
            output: SchedulerOutput = super().schedule(*args, **kwargs)
            return output
        self._begin_reads(hooks)
        held = self._hold_background(hooks) if hooks.num_background else ()
        # Where no slot is free, vLLM admits nobody in this step. Blocks would be pinned for nothing.
        num_slots = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        waiting = itertools.chain(self.kv_holding_waiting, self.waiting)
        may_admit = num_slots > 0 or not self.mind_slots
        if hooks.begin_step(self.running, waiting if may_admit else None, len(held)):
            # Overridden only while a session request has prefill left. vLLM calls it for every request in every step,
            # and one more Python frame for each of 64 decoding requests costs 7 % of a step.
            self._reserve_prefill_lookahead = self._cap_chunk
        try:
            return cast("SchedulerOutput", super().schedule(*args, **kwargs))
        finally:
            self.__dict__.pop("_reserve_prefill_lookahead", None)
            for request in held:
                self.waiting.add_request(request)

    def _begin_reads(self, hooks: StepHooks) -> None:
        """Requests that bring KV back from a tier: finish those that are through, and let vLLM load the new ones."""
        from vllm.v1.request import RequestStatus

        ended, made = hooks.begin_reads(itertools.chain(self.kv_holding_waiting, self.waiting))
        if ended:
            self.finish_requests(ended, RequestStatus.FINISHED_ABORTED)
        for request in made:
            self.add_request(request)

    def _hold_background(self, hooks: StepHooks) -> Sequence[Request]:
        """Take background requests out of the way of everybody else. Returns those to put back after the step."""
        num_waiting = len(self.waiting) + len(self.kv_holding_waiting) - self.num_waiting_for_streaming_input
        num_others = len(self.running) + num_waiting - hooks.num_background
        for request in hooks.to_preempt(num_others):
            self.running.remove(request)
            self._preempt_request(request, time.monotonic())
        held = hooks.to_hold(num_others)
        self.waiting.remove_requests(held)
        return held

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if self._hooks is None:
            return bool(super()._handle_blocked_waiting_request(request))
        if self._hooks.is_aside(request.request_id):
            return False
        is_ready = bool(super()._handle_blocked_waiting_request(request))
        return is_ready and not self._hooks.is_through(request.request_id)

    def _cap_chunk(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        assert self._hooks is not None
        num_new: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        # vLLM pads the last token of a waiting request to a whole row of drafts, and takes no part of that.
        #
        #     prompt   [ num_computed )[ 1 token )        cap_chunk sees this one
        #     chunk                    [ 1 token )[ padding )[ lookahead )        blocks are allocated for all
        num_padding = 0
        if not block_pool.is_running(request):
            num_padding = max(num_computed_tokens + num_new - request.num_tokens, 0)
        num_real = num_new - num_padding
        capped = self._hooks.cap_chunk(request, num_computed_tokens, num_real, num_padding + self.num_lookahead_tokens)
        return num_new if capped == num_real else capped

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if self._hooks is not None:
            # vLLM 0.32 registers block hashes when it schedules. A request that is preempted later in the same step
            # (priority policy) leaves hashes of KV that nobody will compute (vLLM issue 57580).
            #
            #     blocks   [ computed )[ registered, never computed )     the second part loses its hashes
            num_computed = self._hooks.on_preempted(request)
            tables = self.kv_cache_manager.get_block_ids(request.request_id)
            if len(tables) == len(num_computed):
                for block_ids, num_blocks in zip(tables, num_computed, strict=True):
                    self.kv_cache_manager.evict_blocks(set(block_ids[num_blocks:]))
            self._hooks.on_freed(tables[0])
        super()._preempt_request(request, *args, **kwargs)

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: SchedulerOutput) -> Any:
        if self._hooks is not None and not self._is_idle:
            is_paused = not self.get_num_unfinished_requests()
            step = self._hooks.finish_step(scheduler_output.num_scheduled_tokens, is_paused)
            if step.has_copies and self.flag_sync_loads:
                scheduler_output.has_sync_kv_loads = True
            if step.leapt and not self.use_v2_model_runner:
                self._tell_padding(scheduler_output, step.leapt)
            elif step.leapt and self.resend_leapt:
                self._resend_as_new(scheduler_output, list(step.leapt))
            if step.pins:
                # Nobody reads them where nothing is copied, and the step that a fence waits for may never come.
                self._free_cow_retained_blocks(list(step.pins), self.sched_step_seq + 1 if step.has_copies else 0)
        return super()._build_kv_connector_meta(connector, scheduler_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> dict[int, EngineCoreOutputs]:
        hooks = self._hooks
        if hooks is not None:
            runner_output = args[0] if args else kwargs["model_runner_output"]
            if runner_output.prompt_logprobs_dict:
                _keep_scored_rows(runner_output, self.requests)
            self._take_left(hooks, scheduler_output, runner_output)
            hooks.on_processed(scheduler_output.num_scheduled_tokens)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, *args, **kwargs)
        if hooks is not None and not hooks.is_idle:
            # A stop string ends a request in the front end, so the receipt cannot wait for the engine's last output.
            for output in (output for client in outputs.values() for output in client.outputs):
                if output.kv_transfer_params is None:
                    output.kv_transfer_params = hooks.answer(output.request_id)
            for client_index, output in self._end_background(hooks):
                outputs.setdefault(client_index, _no_outputs()).outputs.append(output)
        return outputs

    def _take_left(self, hooks: StepHooks, scheduler_output: SchedulerOutput, runner_output: Any) -> None:
        """Preempt the background request whose chunk was left. What was sampled behind it is nobody's token."""
        word = getattr(runner_output.kv_connector_output, "kv_connector_worker_meta", None)
        is_left = word is not None and isinstance(word, StepLeft)
        request = hooks.take_left(scheduler_output.num_scheduled_tokens, is_left)
        if request is not None:
            self.running.remove(request)
            self._preempt_request(request, time.monotonic(), drop_stale_output=True)

    def _end_background(self, hooks: StepHooks) -> Iterable[tuple[int, EngineCoreOutput]]:
        """Finish the background requests that go no further, as vLLM finishes requests that fail: (client, output)."""
        from vllm.v1.engine import EngineCoreOutput
        from vllm.v1.request import RequestStatus

        for request_id, answer in hooks.take_ended():
            for request in self.finish_requests(request_id, RequestStatus.FINISHED_LENGTH_CAPPED):
                yield (
                    request.client_index,
                    EngineCoreOutput(
                        request_id=request.request_id,
                        new_token_ids=[],
                        finish_reason=request.get_finished_reason(),
                        events=request.take_events(),
                        kv_transfer_params=answer,
                        trace_headers=request.trace_headers,
                    ),
                )

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        done = bool(super().reset_prefix_cache(*args, **kwargs))
        if done and self._hooks is not None:
            # vLLM calls a connector only when `reset_connector` is set. Ours has nothing but names of the cache's KV.
            self._hooks.on_cache_reset()
        return done

    def _tell_padding(self, scheduler_output: SchedulerOutput, leapt: Mapping[str, Padding]) -> None:
        """Runner V1 appends the blocks of a step to the tables that it has. Null blocks come first."""
        null_id = self.kv_cache_manager.block_pool.null_block.block_id
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, padding in leapt.items():
            if any(padding):
                index = cached.req_ids.index(request_id)
                new = cached.new_block_ids[index] or tuple([] for _ in padding)
                cached.new_block_ids[index] = tuple([null_id] * n + ids for n, ids in zip(padding, new, strict=True))

    def _resend_as_new(self, scheduler_output: SchedulerOutput, request_ids: Sequence[str]) -> None:
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
                NewRequestData.from_request(
                    request, block_ids, request._all_token_ids, uses_mrope=self.model_uses_mrope
                )
            )


def _no_outputs() -> EngineCoreOutputs:
    from vllm.v1.engine import EngineCoreOutputs

    return EngineCoreOutputs(outputs=[])


@functools.cache
def compose_scheduler(base: type) -> type:
    """`base` with the mixin in front. A class that has it already is returned as it is."""
    if issubclass(base, MoveSchedulerMixin):
        return base
    return type(f"Acm{base.__name__}", (MoveSchedulerMixin, base), {"__module__": __name__})


def _keep_scored_rows(runner_output: Any, requests: Mapping[str, Request]) -> None:
    """Of a prompt whose last tokens are scored, drop the rows in front of them: the front end would read them all."""
    found = runner_output.prompt_logprobs_dict
    for request_id in list(found):
        request = requests.get(request_id)
        params = None if request is None else request.sampling_params
        num_scored = 0 if params is None else (params.extra_args or {}).get(SCORED_TOKENS, 0)
        rows = found[request_id]
        if rows is not None and type(num_scored) is int and num_scored > 0:
            kept = {name: getattr(rows, name)[-num_scored:] for name in _ROWS}
            found[request_id] = rows._replace(**kept)
