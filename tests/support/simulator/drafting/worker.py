"""A worker whose drafter has a layer of its own, as EAGLE heads and MTP modules do, in the blocks of the model.

    the drafter's KV of token i     made of the model's state at i and of token i + 1
    after the forward pass          it goes over the tokens of the step, with the sampled token behind the last one,
                                    and then drafts in advance: KV of drafts, in the slots behind

    tokens  a b c d | x            of a step that computed a b c d and sampled x
    layer   b c d x . .            what each slot has seen ahead. The dots are drafts, written over by the next step

What a drafter finds decides how good its drafts are. So KV that has seen another token ahead (*stale*) is counted. KV
of another token, at another position, of a draft, or of nobody is a failure: nobody meant to put it there.

`junctions` are the places where a request goes on behind KV that it did not compute. vLLM computes the last block of a
hit anew so that the token in front of a junction has seen the right one ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from acmserve.engine.worker.copies import KVCopy
from tests.support.simulator.drafting.drafts import drafts_behind
from tests.support.simulator.failure import SimulationFailure, ensure
from tests.support.simulator.runner import UNKNOWN
from tests.support.simulator.worker import Worker

NUM_IN_ADVANCE = 2
"""Slots behind the verified tokens that the drafter writes to: one less than the drafts of a step."""


class DraftKV(NamedTuple):
    """The drafter's KV in one slot. `ahead` is the token behind. A draft's KV has no token."""

    token: int | None
    position: int
    ahead: int | None


class DraftingWorker(Worker):
    """See the module. Counts junctions, those of them that are stale, and stale positions in the prompts computed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layer: list[DraftKV | None] = [None] * len(self.memory.slots)
        self.num_junctions = self.num_stale_junctions = self.num_read = self.num_stale = 0
        self._ends: dict[str, int] = {}
        self._on_device: dict[str, list[int]] = {}

    def execute(self, output: SchedulerOutput, handed_out: Iterable[int]) -> ModelRunnerOutput:
        size = self.memory.block_size
        for block_id in handed_out:
            self.layer[block_id * size : (block_id + 1) * size] = [None] * size
        for preempted in output.preempted_req_ids or ():
            self._ends.pop(preempted, None)
        return super().execute(output, handed_out)

    def _apply(self, copies: tuple[KVCopy, ...]) -> None:
        super()._apply(copies)
        moved: dict[int, DraftKV | None] = {}
        for copy in copies:
            sources = self.memory.range_slots(copy.src_block_ids, copy.src_start, copy.num_tokens)
            targets = self.memory.range_slots(copy.dst_block_ids, copy.dst_start, copy.num_tokens)
            for source, target in zip(sources, targets, strict=True):
                kv = self.layer[source]
                moved[target] = None if kv is None else kv._replace(position=kv.position + copy.delta)
        for target, kv in moved.items():
            self.layer[target] = kv

    def _forward(self, scheduled: dict[str, int]) -> dict[str, list[int]]:
        self._drafts = {request_id: self._known(request_id, drafts) for request_id, drafts in self._drafts.items()}
        spans = {request_id: self._span(request_id, num_tokens) for request_id, num_tokens in scheduled.items()}
        sampled = super()._forward(scheduled)
        for request_id, (start, end, num_written) in spans.items():
            self._draft(request_id, start, end, num_written)
            self._on_device[request_id] = drafts_behind(end + 1, self._readers[request_id], NUM_IN_ADVANCE + 1)
        return sampled

    def _known(self, request_id: str, drafts: list[int]) -> list[int]:
        """Drafts that the scheduler knows the number of only: those of the step before, and nothing behind them."""
        if drafts and all(draft == UNKNOWN for draft in drafts):
            own = self._on_device.get(request_id, [])
            return [*own, *drafts][: len(drafts)]
        return drafts

    def _span(self, request_id: str, num_tokens: int) -> tuple[int, int, int]:
        """First token of this step, the one behind the last that is verified, and behind the last that is written."""
        start = self.runner.num_computed(request_id)
        num_rejected = len(self._drafts.get(request_id, ())) - self._num_accepted(request_id, num_tokens)
        end = start + num_tokens - num_rejected
        return start, end, max(start + num_tokens, end + NUM_IN_ADVANCE)

    def _draft(self, request_id: str, start: int, end: int, num_written: int) -> None:
        reader, table, size = self._readers[request_id], self.runner.block_table(request_id), self.memory.block_size
        for position in range(start, min(num_written, len(table) * size)):
            kv = DraftKV(None, position, None)
            if position < end:
                kv = DraftKV(reader.sequence.token(position), position, reader.sequence.token(position + 1))
            self.layer[table[position // size] * size + position % size] = kv
        is_junction = start and self._ends.get(request_id) != start
        is_prefilled = end >= reader.sequence.num_prompt_tokens > start
        self._ends[request_id] = end
        if not (is_junction or is_prefilled):
            return  # what it reads was there in the step before
        slots = (table[position // size] * size + position % size for position in range(end))
        found = [self._check(request_id, self.layer[slot], position) for position, slot in enumerate(slots)]
        stale = [kv.ahead != reader.sequence.token(position + 1) for position, kv in enumerate(found)]
        if is_junction:
            self.num_junctions += 1
            self.num_stale_junctions += stale[start - 1]
        if is_prefilled:
            self.num_read, self.num_stale = self.num_read + end, self.num_stale + sum(stale)

    def _check(self, request_id: str, kv: DraftKV | None, position: int) -> DraftKV:
        where = f"the drafter of {request_id} reads position {position}"
        if kv is None:
            raise SimulationFailure("poison", f"{where}: nobody wrote this slot")
        ensure(kv.position == position, "position", f"{where}: finds KV of position {kv.position}")
        wanted = self._readers[request_id].sequence.token(position)
        ensure(kv.token == wanted, "token", f"{where}: finds token {kv.token}, wants {wanted}")
        return kv
