"""Carries an attack out on vLLM's scheduler, and times what the scheduler's thread does: each call, and our part of it.

No model is there: a step costs what the scheduler costs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from tests.support.simulator.machine import Factory, Machine, block_hasher
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.scripts import Turn
from tests.support.worst_step.attack import Attack, Tokens
from tests.support.worst_step.own_work import OwnWork

BLOCK_SIZE = 16
NUM_SOURCES = 8
Result = TypeVar("Result")


@dataclass
class Timing:
    """The longest call of each kind in milliseconds, and the most blocks that one step copied from.

    `longest_ms` is the time of the whole call. `added_ms` is acmserve's own part of it, in CPU time of the thread.
    """

    longest_ms: dict[str, float] = field(default_factory=dict)
    added_ms: dict[str, float] = field(default_factory=dict)
    num_source_blocks: int = 0
    num_steps: int = 0
    receipts: list[dict[str, Any]] = field(default_factory=list)

    def call(self, work: OwnWork, name: str, function: Callable[..., Result], *args: Any) -> Result:
        """Call and time it."""
        work.take_ms()
        start = time.perf_counter()
        result = function(*args)
        elapsed_ms = 1e3 * (time.perf_counter() - start)
        self.longest_ms[name] = max(self.longest_ms.get(name, 0.0), elapsed_ms)
        self.added_ms[name] = max(self.added_ms.get(name, 0.0), work.take_ms())
        return result


class Stopwatch:
    """One scheduler under one attack. Without `is_ours` a stock engine is sent the same prompts."""

    def __init__(self, factory: Factory, attack: Attack, num_tokens: int, *, is_ours: bool = True) -> None:
        num_blocks = int(attack.pool_share * (NUM_SOURCES + attack.num_at_once) * num_tokens / BLOCK_SIZE)
        num_blocks = max(num_blocks, 2 * num_tokens // BLOCK_SIZE)
        self.scheduler: Scheduler = factory.scheduler(
            Machine(
                async_scheduling=False,
                runner_v2=False,
                block_size=BLOCK_SIZE,
                num_blocks=num_blocks,
                max_num_batched_tokens=attack.step_tokens,
                max_num_seqs=64,
                connector={"max_source_mib": 1024} if is_ours else None,
            )
        )
        self._work = OwnWork(self.scheduler)
        self._attack = attack
        self._num_tokens = num_tokens
        self._is_ours = is_ours
        self._hasher = block_hasher(BLOCK_SIZE)
        self._num_sent = 0

    def run(self) -> Timing:
        """Serve the sources, then time the edits."""
        attack = self._attack
        sources = attack.sources(NUM_SOURCES, self._num_tokens)
        for source in sources:
            self._serve([source], "exact" if attack.fidelity == "exact" else "reuse", forget=False, timing=Timing())
        edits = attack.edits(sources, self._num_tokens - 64)
        timing = Timing()
        gc.collect()
        self._serve(edits, attack.fidelity, forget=attack.forget, timing=timing)
        if attack.again:
            self._serve([_with_more(edit) for edit in edits], attack.fidelity, forget=False, timing=timing)
        self.scheduler.shutdown()
        return timing

    def _serve(self, prompts: list[Tokens], fidelity: str, *, forget: bool, timing: Timing) -> None:
        requests = [self._request(prompt, fidelity, forget) for prompt in prompts]
        for request in requests:
            timing.call(self._work, "on_new_request", self.scheduler.add_request, request)
        while self.scheduler.has_unfinished_requests():
            output = timing.call(self._work, "schedule", self.scheduler.schedule)
            timing.num_steps += 1
            copies = getattr(output.kv_connector_metadata, "copies", ())
            timing.num_source_blocks = max(timing.num_source_blocks, sum(len(copy.src_block_ids) for copy in copies))
            if not output.num_scheduled_tokens:
                time.sleep(0.001)  # as vLLM's own loop does: nobody can go on before a plan is ready
            outputs = timing.call(
                self._work, "update", self.scheduler.update_from_output, output, _sampled(self.scheduler, output)
            )
            for answer in (answer for client in outputs.values() for answer in client.outputs):
                if answer.finish_reason is not None and answer.kv_transfer_params:
                    timing.receipts.append(answer.kv_transfer_params["acm"]["receipt"])

    def _request(self, prompt: Tokens, fidelity: Any, forget: bool) -> Any:
        self._num_sent += 1
        session = "s" if self._is_ours else None
        turn = Turn(f"r{self._num_sent}", tuple(prompt.tolist()), 1, session, None, fidelity, forget=forget)
        if not self._is_ours:
            turn = Turn(turn.request_id, turn.prompt, 1)
        return as_request(turn, self._hasher)


def _with_more(tokens: Tokens) -> Tokens:
    more: Tokens = tokens[:32]
    result: Tokens = tokens.copy()
    result.resize(len(tokens) + len(more), refcheck=False)
    result[-len(more) :] = more
    return result


def _sampled(scheduler: Scheduler, output: Any) -> ModelRunnerOutput:
    """One token for each request whose prompt is through."""
    ids = list(output.num_scheduled_tokens)
    requests = [scheduler.requests[request_id] for request_id in ids]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[[7] if r.num_computed_tokens >= r.num_tokens else [] for r in requests],
    )
