"""What the two model runners of vLLM remember of a request between steps, without the tensors.

Both are fed by the same `SchedulerOutput` and differ in one thing that matters to a plugin which changes computed
counts behind vLLM's back:

    runner V1   takes every request's computed count from the scheduler, each step
    runner V2   loads it for requests that are sent as *new*, and from then on counts on the device

So a count that leaps is seen by V1 at once and by V2 only when the request is sent again as new. V2 keeps a CPU
mirror of the scheduler's count. Without speculative decoding the two must agree, and `num_computed` checks it.

Sources (vLLM 0.32):

    worker/gpu_model_runner.py    `_update_states`, `_prepare_input_ids`, `_bookkeeping_sync`
    worker/gpu/model_runner.py    `finish_requests`, `add_requests`, `update_requests`
    worker/gpu/input_batch.py     `_prepare_prefill_inputs_kernel`, `_combine_sampled_and_draft_tokens_kernel`,
                                  `_post_update_kernel`

Left out: async speculative decoding on runner V1, pipeline parallelism, weights of adapters, multimodal inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from vllm.v1.core.sched.output import SchedulerOutput

from tests.support.simulator.failure import ensure

UNKNOWN = -1
"""A sampled token that is still on the device (async scheduling)."""


class Runner(Protocol):
    """The part of a model runner that turns scheduler outputs into positions, tokens and block tables."""

    def update(self, output: SchedulerOutput) -> None:
        """Take in one scheduler output, before the forward pass."""

    def num_computed(self, request_id: str) -> int:
        """Position of the first token that this step computes."""

    def input_tokens(self, request_id: str, num_tokens: int) -> list[int]:
        """The `num_tokens` token ids that this step feeds for the request."""

    def block_table(self, request_id: str, group: int = 0) -> list[int]:
        """Block ids of the request in a KV cache group, in order of position."""

    def samples(self, request_id: str, num_tokens: int) -> bool:
        """Whether a step of `num_tokens` tokens ends where a token is sampled."""

    def advance(self, scheduled: dict[str, int], sampled: dict[str, list[int]]) -> None:
        """Bookkeeping after the forward pass: `scheduled` tokens were computed, `sampled` tokens drawn.

        Rejected drafts are not counted.
        """


@dataclass
class _StateV1:
    prompt: list[int]
    block_ids: list[list[int]]
    num_computed: int
    outputs: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)


class RunnerV1:
    """`gpu_model_runner.GPUModelRunner`: cached request states and a persistent batch."""

    def __init__(self, async_scheduling: bool) -> None:
        self._async = async_scheduling
        self._states: dict[str, _StateV1] = {}
        self._batch: set[str] = set()
        self._last_sampled: dict[str, int] = {}

    def update(self, output: SchedulerOutput) -> None:
        for request_id in output.finished_req_ids:
            self._states.pop(request_id, None)
            self._batch.discard(request_id)
        scheduled = output.num_scheduled_tokens.keys()
        self._batch &= scheduled - output.scheduled_cached_reqs.resumed_req_ids
        for new in output.scheduled_new_reqs:
            assert new.prompt_token_ids is not None
            blocks = [list(ids) for ids in new.block_ids]
            self._states[new.req_id] = _StateV1(list(new.prompt_token_ids), blocks, new.num_computed_tokens)
            self._batch.add(new.req_id)
        for index in range(output.scheduled_cached_reqs.num_reqs):
            self._update_cached(output, index)
        ensure(self._batch == set(scheduled), "table", f"batch {self._batch} differs from scheduled {set(scheduled)}")

    def _update_cached(self, output: SchedulerOutput, index: int) -> None:
        cached = output.scheduled_cached_reqs
        request_id = cached.req_ids[index]
        ensure(request_id in self._states, "table", f"{request_id} is sent as cached and was never sent as new")
        state = self._states[request_id]
        new_block_ids = cached.new_block_ids[index]
        num_outputs = cached.num_output_tokens[index]
        state.num_computed = cached.num_computed_tokens[index]
        del state.outputs[num_outputs:]
        if request_id in cached.resumed_req_ids:
            ensure(request_id not in self._batch, "table", f"{request_id} resumes while it is in the batch")
            ensure(new_block_ids is not None, "table", f"{request_id} resumes without blocks")
            state.block_ids = [[] for _ in state.block_ids]
        if new_block_ids is not None:
            for table, ids in zip(state.block_ids, new_block_ids, strict=True):
                table.extend(ids)
        if request_id not in self._batch:
            if self._async and num_outputs > 0:
                state.outputs = list(cached.all_token_ids[request_id][-num_outputs:])
            self._batch.add(request_id)

    def num_computed(self, request_id: str) -> int:
        return self._states[request_id].num_computed

    def input_tokens(self, request_id: str, num_tokens: int) -> list[int]:
        state = self._states[request_id]
        start = state.num_computed
        tokens = (state.prompt + state.outputs)[start : start + num_tokens]
        ensure(
            len(tokens) == num_tokens,
            "input",
            f"{request_id}: {num_tokens} tokens from {start}, has {state.num_tokens}",
        )
        if tokens[-1] == UNKNOWN:
            tokens[-1] = self._last_sampled.get(request_id, UNKNOWN)
        ensure(UNKNOWN not in tokens, "input", f"{request_id}: unknown token among {tokens} from {start}")
        return tokens

    def block_table(self, request_id: str, group: int = 0) -> list[int]:
        return self._states[request_id].block_ids[group]

    def samples(self, request_id: str, num_tokens: int) -> bool:
        state = self._states[request_id]
        return state.num_computed + num_tokens >= state.num_tokens

    def advance(self, scheduled: dict[str, int], sampled: dict[str, list[int]]) -> None:
        self._last_sampled = {request_id: tokens[-1] for request_id, tokens in sampled.items()}
        for request_id, tokens in sampled.items():
            self._states[request_id].outputs += [UNKNOWN] * len(tokens) if self._async else tokens


@dataclass
class _StateV2:
    tokens: list[int]
    num_prefill_tokens: int
    num_computed: int
    num_computed_mirror: int
    block_ids: list[list[int]]
    last_sampled: int = UNKNOWN


class RunnerV2:
    """`gpu/model_runner.GPUModelRunner`: token ids and computed counts live on the device.

    With speculative decoding the scheduler counts drafts that are rejected later, and the mirror says nothing.
    """

    def __init__(self) -> None:
        self._has_drafts = False
        self._states: dict[str, _StateV2] = {}

    def update(self, output: SchedulerOutput) -> None:
        self._has_drafts |= bool(output.scheduled_spec_decode_tokens)
        for request_id in output.finished_req_ids | (output.preempted_req_ids or set()):
            self._states.pop(request_id, None)
        for new in output.scheduled_new_reqs:
            tokens = new.prefill_token_ids
            ensure(tokens is not None, "input", f"{new.req_id} is sent as new without prefill_token_ids")
            assert tokens is not None
            count = new.num_computed_tokens
            tables = [list(ids) for ids in new.block_ids]
            self._states[new.req_id] = _StateV2(list(tokens), len(tokens), count, count, tables)
        cached = output.scheduled_cached_reqs
        for request_id, count, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            ensure(request_id in self._states, "table", f"{request_id} is sent as cached and was never sent as new")
            self._states[request_id].num_computed_mirror = count
            for table, ids in zip(self._states[request_id].block_ids, blocks or (), strict=blocks is not None):
                table.extend(ids)

    def num_computed(self, request_id: str) -> int:
        state = self._states[request_id]
        ensure(
            self._has_drafts or state.num_computed == state.num_computed_mirror,
            "count",
            f"{request_id}: device counts {state.num_computed} tokens, scheduler {state.num_computed_mirror}",
        )
        return state.num_computed

    def input_tokens(self, request_id: str, num_tokens: int) -> list[int]:
        state = self._states[request_id]
        start, end = state.num_computed, state.num_computed + num_tokens
        if end > state.num_prefill_tokens:
            tokens = [*state.tokens[start : end - 1], state.last_sampled]
        else:
            tokens = state.tokens[start:end]
        ensure(UNKNOWN not in tokens, "input", f"{request_id}: unknown token among {tokens} from {start}")
        ensure(len(tokens) == num_tokens, "input", f"{request_id}: {num_tokens} tokens from {start}, {tokens} known")
        return tokens

    def block_table(self, request_id: str, group: int = 0) -> list[int]:
        return self._states[request_id].block_ids[group]

    def samples(self, request_id: str, num_tokens: int) -> bool:
        state = self._states[request_id]
        return state.num_computed + num_tokens >= state.num_prefill_tokens

    def advance(self, scheduled: dict[str, int], sampled: dict[str, list[int]]) -> None:
        for request_id, num_tokens in scheduled.items():
            self._states[request_id].num_computed += num_tokens
        for request_id, tokens in sampled.items():
            state = self._states[request_id]
            state.tokens += tokens
            state.last_sampled = tokens[-1]
