"""Runs one script: the client, the engine core's loop, the worker, and the checks around them.

    sync     schedule -> execute -> aborts -> update_from_output
    async    schedule n+1 and execute it before the output of n is processed (v1/engine/core.py step_with_batch_queue)

The worker executes at once. A device works in the order of scheduling, and nothing but scheduler outputs reaches it, so
when exactly it works cannot be observed. Blocks are poisoned as of the step in whose scheduling they were handed out. A
step still in flight has therefore run on the old contents, as on a device.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import chain
from typing import Any

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from acmserve.engine.scheduling.arrivals import Arrivals
from acmserve.engine.vllm.lineage_hasher import LineageHasher
from acmserve.errors import IntegrityError
from tests.support.simulator.background import BackgroundWatch
from tests.support.simulator.drafting.drafts import make_drafts
from tests.support.simulator.failure import SimulationFailure, ensure
from tests.support.simulator.forgetting import Forgetting
from tests.support.simulator.machine import BlockHasher, Factory, block_hasher
from tests.support.simulator.report import Report
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.requests.media import features_of
from tests.support.simulator.runner import Runner, RunnerV1, RunnerV2
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.slots import Reader, SlotMemory
from tests.support.simulator.truth import Owner, Sequence, Truth
from tests.support.simulator.worker import Worker

MAX_STEPS = 20_000
MAX_IDLE_STEPS = 60


class Simulation:
    """One script on one fresh scheduler and worker."""

    def __init__(
        self,
        script: Script,
        factory: Factory,
        *,
        worker_class: type[Worker] = Worker,
        make_hasher: Callable[[int], BlockHasher] = block_hasher,
    ) -> None:
        self.script = script
        self.machine = script.machine
        self.scheduler: Scheduler = factory.scheduler(script.machine)
        runner: Runner = RunnerV2() if self.machine.runner_v2 else RunnerV1(self.machine.async_scheduling)
        seen: dict[Owner, set[int]] = {}
        num_blocks, chunked = self.machine.num_blocks, self.machine.chunked
        memories = [SlotMemory(num_blocks, size, window, seen, chunked) for size, window in self.machine.groups]
        self.worker = worker_class(runner, *memories)
        self.report = Report()
        self.receipts: dict[str, dict[str, Any]] = {}
        self._truth = Truth(script.machine.mrope)
        self._default_fidelity = (self.machine.connector or {}).get("default_fidelity", "exact")
        self._hasher = make_hasher(self.machine.hash_block_size)
        self._turns = {turn.request_id: turn for turn in script.turns}
        self._waiting = list(script.turns)
        self._readers: dict[str, Reader] = {}
        self._sent_at: dict[str, int] = {}
        self._num_forgets: Counter[tuple[str, str | None]] = Counter()
        self._num_delivered: Counter[str] = Counter()
        self._preempted: set[str] = set()
        self._ended: set[str] = set()
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._handed_out: list[int] = []
        self._watch = BackgroundWatch(
            self.scheduler, script.turns, self.machine.connector, lambda: self.report.num_steps
        )
        self._watch_pool()

    def run(self) -> Report:
        """Run the script to its end. Whatever is raised carries a note with seed, step and machine."""
        try:
            self._run()
            self._check_end()
        except Exception as error:
            error.add_note(f"seed {self.script.seed}, step {self.report.num_steps}, {self.machine}")
            raise
        finally:
            self.scheduler.shutdown()
        return self.report

    def _run(self) -> None:
        num_idle = 0
        while self._waiting or self._in_flight or self.scheduler.has_requests():
            self.report.num_steps += 1
            self._send_due()
            self._abort_due(in_flight=False)
            if self.report.num_steps in self.script.reset_at_steps:
                self.report.num_resets += self.scheduler.reset_prefix_cache(reset_running_requests=not self._in_flight)
            moved = self._step()
            num_idle = 0 if moved or not self.scheduler.has_unfinished_requests() else num_idle + 1
            ensure(num_idle < MAX_IDLE_STEPS, "stuck", f"no token in {num_idle} steps: {self._unfinished()}")
            ensure(self.report.num_steps < MAX_STEPS, "stuck", f"{MAX_STEPS} steps: {self._unfinished()}")

    def _step(self) -> bool:
        """Run one turn of the engine core's loop, and return whether any token was scheduled."""
        num_scheduled = 0
        if self.scheduler.has_requests():
            foreground = self._watch.foreground
            output = self.scheduler.schedule()
            num_scheduled = output.total_num_scheduled_tokens
            handed_out, self._handed_out[:] = tuple(self._handed_out), ()
            self._watch.check_step(output, handed_out, foreground)
            self._preempted |= output.preempted_req_ids or set()
            self.report.num_preemptions += len(output.preempted_req_ids or ())
            self._check_hashes(output)
            self._in_flight.append((output, self.worker.execute(output, handed_out)))
            self._check_references()
            self._check_integrity()
            depth = 2 if self.machine.async_scheduling else 1
            if len(self._in_flight) < depth and (num_scheduled or self.scheduler.has_requests()):
                return True
        if self._in_flight:
            self._abort_due(in_flight=True)
            self._watch.on_processed(self._in_flight[0][0])
            output, answer = self._in_flight.popleft()
            outputs = self.scheduler.update_from_output(output, answer)
            if self.machine.num_drafts and not self.machine.async_scheduling:
                requests, num_drafts = self.scheduler.requests, self.machine.num_drafts
                drafts = make_drafts(answer.req_ids, requests, self._readers, num_drafts)
                self.scheduler.update_draft_token_ids(drafts)
            for engine_outputs in outputs.values():
                for engine_output in engine_outputs.outputs:
                    self._receive(engine_output)
        return num_scheduled > 0

    def _send_due(self) -> None:
        for turn in list(self._waiting):
            if turn.at_step <= self.report.num_steps and (turn.after is None or turn.after in self._ended):
                self._waiting.remove(turn)
                self._send(turn)

    def _send(self, turn: Turn) -> None:
        """Send a request. One that forgets opens a new life of its session, and may not meet moved KV itself."""
        forgetting = Forgetting(self.scheduler, turn) if turn.forget else None
        owner = None
        if turn.session is not None:
            self._num_forgets[turn.session, turn.salt] += turn.forget
            owner = (turn.session, turn.salt, self._num_forgets[turn.session, turn.salt], turn.adapter)
        reuse = owner is not None and not turn.forget and self._fidelity(turn) != "exact"
        reader = Reader(turn.request_id, Sequence(self._truth, turn.salt, turn.prompt, turn.adapter), owner, reuse)
        reader.features = features_of(turn.prompt)
        self._readers[turn.request_id] = reader
        if turn.abort_after_steps is not None:
            self._sent_at[turn.request_id] = self.report.num_steps
        self.worker.admit(reader)
        self.scheduler.add_request(self._request(turn))
        if forgetting is not None:
            connector: Any = self.scheduler.connector
            self.report.num_forgets += 1
            self.report.num_forgotten_keys += 0 if connector.evictions else forgetting.check()
            self.report.num_forgets_beside_live_requests += forgetting.num_live > 0

    def _fidelity(self, turn: Turn) -> str:
        return "exact" if turn.precompute else turn.fidelity or self._default_fidelity

    def _request(self, turn: Turn) -> Request:
        return as_request(turn, self._hasher, arrival_time=float(len(self._readers)))

    def _abort_due(self, in_flight: bool) -> None:
        """Aborts reach the core before it schedules, or while a step runs: even ages here, odd ages there."""
        for request_id, sent_at in self._sent_at.items():
            limit = self._turns[request_id].abort_after_steps or 0
            age = self.report.num_steps - sent_at
            if request_id not in self._ended and age >= limit and in_flight == bool(limit % 2):
                self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
                self._ended.add(request_id)
                self.report.num_aborted += 1

    def _receive(self, output: EngineCoreOutput) -> None:
        request_id = output.request_id
        sequence = self._readers[request_id].sequence
        start = sequence.num_prompt_tokens + self._num_delivered[request_id]
        wanted = [sequence.token(start + index) for index in range(len(output.new_token_ids))]
        ensure(output.new_token_ids == wanted, "output", f"{request_id} got {output.new_token_ids}, wants {wanted}")
        self._num_delivered[request_id] += len(wanted)
        if output.finish_reason is not None:
            self._ended.add(request_id)
            self.report.num_finished += 1
            if self.machine.connector is not None and self._turns[request_id].session is not None:
                self._check_receipt(self._turns[request_id], output.kv_transfer_params)

    def _check_receipt(self, turn: Turn, params: dict[str, Any] | None) -> None:
        """The receipt adds up, and tells what the worker did. After a preemption its split is the engine's own."""
        ensure(bool(params) and "acm" in (params or {}), "receipt", f"{turn.request_id}: none, but {params}")
        assert params is not None
        receipt, token_counts = params["acm"]["receipt"], self.worker.token_counts[turn.request_id]
        kept, moved, computed = (receipt[f"{name}_tokens"] for name in ("kept", "moved", "computed"))
        where = f"{turn.request_id} with {len(turn.prompt)} tokens: {receipt}"
        ensure(min(kept, moved, computed) >= 0, "receipt", where)
        ensure(kept + moved + computed == receipt["prompt_tokens"], "receipt", where)
        ensure(0 <= receipt["precomputed_tokens"] <= kept, "receipt", where)
        ensure(0 <= receipt["repaired_tokens"] <= computed, "receipt", where)
        ensure(0 <= receipt["loaded_tokens"] <= receipt["kept_tokens"] + receipt["moved_tokens"], "receipt", where)
        ensure(self.machine.tier_chunks > 0 or not receipt["loaded_tokens"], "receipt", where)
        if turn.precompute:
            self._watch.check_receipt(turn, receipt)
            self.receipts[turn.request_id] = receipt
            self.report.background[receipt["fallback_reason"] or "ready"] += 1
            return
        ensure(receipt["prompt_tokens"] == len(turn.prompt), "receipt", where)
        ensure(sum(move["num_tokens"] for move in receipt["moves"]) == moved, "receipt", f"moves of {where}")
        ensure(receipt["fidelity"] == self._fidelity(turn), "receipt", where)
        ensure(not (turn.forget and moved), "receipt", f"moved although it forgets: {where}")
        ensure((receipt["chosen"] is None) == (receipt["fidelity"] != "auto"), "receipt", where)
        ensure(receipt["chosen"] != "exact" or not moved, "receipt", f"moved although it chose exact: {where}")
        if turn.request_id not in self._preempted:
            ensure(
                computed == len(token_counts.computed),
                "receipt",
                f"worker computed {len(token_counts.computed)}; {where}",
            )
            ensure(
                moved >= token_counts.num_turned, "receipt", f"worker turned {token_counts.num_turned} tokens; {where}"
            )
        self.receipts[turn.request_id] = receipt
        self.report.num_precomputed_tokens += receipt["precomputed_tokens"]
        self.report.tokens += Counter(kept=kept, moved=moved, computed=computed)
        self.report.num_repaired_tokens += receipt["repaired_tokens"]
        self.report.num_turned_tokens += token_counts.num_turned
        self.report.num_moved_requests += moved > 0
        self.report.num_requests_with_holes += len(receipt["moves"]) > 1
        self.report.num_kept_boundaries += (receipt["edit_boundaries"] or {"kept": 0})["kept"]
        self.report.fallback_reasons[str(receipt["fallback_reason"])] += 1

    def _watch_pool(self) -> None:
        """Note every block that the pool hands out."""
        pool = self.scheduler.kv_cache_manager.block_pool
        get_new_blocks = pool.get_new_blocks

        def watched(num_blocks: int) -> list[KVCacheBlock]:
            self._watch.on_hand_out(num_blocks)
            blocks: list[KVCacheBlock] = get_new_blocks(num_blocks)
            self._handed_out += [block.block_id for block in blocks]
            return blocks

        pool.get_new_blocks = watched

    def _check_references(self) -> None:
        """Every block in a live request's table is referenced at least as often as it occurs."""
        manager = self.scheduler.kv_cache_manager
        tables = (table for request_id in self.scheduler.requests for table in manager.get_block_ids(request_id))
        uses = Counter(chain.from_iterable(tables))
        uses.pop(manager.block_pool.null_block.block_id, None)
        blocks = manager.block_pool.blocks
        lacking = {block: (blocks[block].ref_cnt, num) for block, num in uses.items() if blocks[block].ref_cnt < num}
        ensure(not lacking, "blocks", f"blocks with fewer references than uses: {lacking}")

    def _check_hashes(self, output: SchedulerOutput) -> None:
        """The hashes of a new session request are those that its tokens and marks have when all are made anew."""
        connector: Any = self.scheduler.connector
        for request_id in (new.req_id for new in output.scheduled_new_reqs if self.machine.connector is not None):
            session, request = connector.live.get(request_id), self.scheduler.requests[request_id]
            if session is None or session.hidden_from is not None or not Arrivals.lineage_keys:
                continue
            key = session.owner.adapter_key
            hashes = LineageHasher(sha256, self.machine.hash_block_size, session.marks, key).extended(request, ())
            message = f"{request_id}: its hashes are not those of its marks {session.marks}"
            ensure(hashes == tuple(request.block_hashes), "leak", message)

    def _check_integrity(self) -> None:
        """Our connector's own invariants hold between any two steps."""
        if self.machine.connector is not None:
            connector: Any = self.scheduler.connector
            try:
                connector.check_integrity()
            except IntegrityError as error:
                raise SimulationFailure("integrity", str(error)) from error

    def _check_end(self) -> None:
        """Nothing is left: no request, no block in use, no pin."""
        scheduler, pool = self.scheduler, self.scheduler.kv_cache_manager.block_pool
        ensure(self._ended == set(self._turns), "stuck", f"never ended: {set(self._turns) - self._ended}")
        self._check_integrity()
        self._watch.check_end(self.report.num_precomputed_tokens)
        ensure(not scheduler.deferred_frees, "blocks", f"deferred frees left: {scheduler.deferred_frees}")
        held = {block.block_id: block.ref_cnt for block in pool.blocks if block.ref_cnt and not block.is_null}
        ensure(not held, "blocks", f"blocks still referenced at the end: {held}")
        num_free = pool.get_num_free_blocks()
        ensure(num_free == pool.num_gpu_blocks - 1, "blocks", f"{num_free} of {pool.num_gpu_blocks - 1} blocks free")

    def _unfinished(self) -> str:
        return ", ".join(
            f"{r.request_id} {r.status!s} {r.num_computed_tokens}/{r.num_tokens}"
            for r in self.scheduler.requests.values()
        )
