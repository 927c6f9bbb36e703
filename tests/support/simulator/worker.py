"""A worker without tensors: executes vLLM's real `SchedulerOutput`s on a `SlotMemory` and checks everything it touches.

One step, in the order of vLLM's runners:

    poison the blocks handed out while this step was scheduled
    update the request states                     runner.py
    copy-on-write blocks of the step
    connector copies                              only if has_sync_kv_loads, as vLLM does ...
    forward: compute the scheduled tokens, then read every slot of every scheduled request
    connector copies                              ... else only now, too late for this step

All requests of a step write before any of them is checked for reading, as in a layer of the real model. There the
whole batch stores K and V before attention. A request may therefore hit blocks that another one fills in the same step.
What a new record descends from is computed in scheduling order. The engine's truth is never asked: tokens, positions
and exactness are compared with `truth.Sequence`.

Drafts are computed behind a request's last token, as vLLM schedules them. Those that the model would not have sampled
are rejected, with all behind the first of them, and the KV of those is nobody's:

    computed    ... last token | draft draft draft        2 tokens accepted, the third rejected
    sampled                      token token token        the two, and the one that stands in the third's place
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from acmserve.engine.worker.copies import KVCopy
from tests.support.simulator.failure import SimulationFailure, ensure
from tests.support.simulator.requests.media import fed
from tests.support.simulator.runner import Runner
from tests.support.simulator.slots import Reader, SlotMemory
from tests.support.simulator.tier import SimulatedTier
from tests.support.simulator.truth import MIXED, Owner, Record

REJECTED: frozenset[Owner] = frozenset({("a rejected draft", None, 0)})
"""Whose KV that of a rejected draft is."""


@dataclass
class Ledger:
    """What the worker really did for one request: prompt positions computed, and tokens copied with delta != 0."""

    computed: set[int] = field(default_factory=set)
    num_turned: int = 0


class Worker:
    """One worker. `admit` must name a request before the scheduler sends it."""

    def __init__(self, runner: Runner, memory: SlotMemory, *others: SlotMemory) -> None:
        self.runner = runner
        self.memory = memory
        self.memories = (memory, *others)
        self.tier = SimulatedTier(memory)
        self.token_counts: dict[str, Ledger] = {}
        self.num_accepted = self.num_rejected = 0
        self._readers: dict[str, Reader] = {}
        self._drafts: dict[str, list[int]] = {}
        self._encoded: set[str] = set()
        self._spans: dict[str, tuple[tuple[int, int], ...]] = {}
        self.num_passes = 0

    def admit(self, reader: Reader) -> None:
        """Tell the worker who a request is."""
        self._readers[reader.request_id] = reader
        self.token_counts[reader.request_id] = Ledger()

    def execute(self, output: SchedulerOutput, handed_out: Iterable[int]) -> ModelRunnerOutput:
        """Run one step. `handed_out` are the block ids that the pool gave away since the last one."""
        blocks = tuple(handed_out)
        below = getattr(output.kv_connector_metadata, "below", None)
        if below is not None:
            self.tier.begin(below)
        for memory in self.memories:
            memory.poison(blocks)
        self.runner.update(output)
        self._encode(output)
        self._drafts = output.scheduled_spec_decode_tokens
        self._spans = {one.request_id: one.spans for one in getattr(output.kv_connector_metadata, "passes", ())}
        self._check_passes(output.num_scheduled_tokens)
        for copy in output.kv_cache_block_copies or ():
            self.memory.copy_block(copy.src_block_id, copy.dst_block_id)
        copies = getattr(output.kv_connector_metadata, "copies", ())
        copies = tuple(getattr(copies, "copies", copies))
        self._check_overlap(copies, output)
        if output.has_sync_kv_loads:
            self._apply(copies)
        sampled = self._forward(output.num_scheduled_tokens)
        if not output.has_sync_kv_loads:
            self._apply(copies)
        request_ids = list(output.num_scheduled_tokens)
        answer = ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
            sampled_token_ids=[sampled.get(r, []) for r in request_ids],
        )
        return answer if below is None else self.tier.end(below, answer)

    def _check_passes(self, scheduled: dict[str, int]) -> None:
        """A pass is the request's chunk: as many tokens, with the same end."""
        for request_id, spans in self._spans.items():
            num_tokens = scheduled.get(request_id, 0)
            end = self.runner.num_computed(request_id) + num_tokens
            is_chunk = sum(b - a for a, b in spans) == num_tokens and spans[-1][1] == end
            ensure(is_chunk, "input", f"{request_id}: pass {spans} is no chunk of {num_tokens} tokens up to {end}")
            self.num_passes += 1

    def _spans_of(self, request_id: str, num_tokens: int) -> tuple[tuple[int, int], ...]:
        """What a request computes in this step: one chunk, or around what is copied."""
        start = self.runner.num_computed(request_id)
        return self._spans.get(request_id, ((start, start + num_tokens),))

    def _encode(self, output: SchedulerOutput) -> None:
        """Keep vLLM's encoder cache: drop what the scheduler freed, encode what it scheduled."""
        self._encoded -= set(output.free_encoder_mm_hashes)
        for request_id, indices in output.scheduled_encoder_inputs.items():
            features = self._readers[request_id].features
            self._encoded |= {features[index].identifier for index in indices}

    def _check_encoded(self, reader: Reader, position: int) -> None:
        image = reader.image_at(position)
        encoded = image is None or image in self._encoded
        ensure(encoded, "input", f"{reader.request_id} computes position {position} of image {image}, never encoded")

    def _check_overlap(self, copies: tuple[KVCopy, ...], output: SchedulerOutput) -> None:
        """No slot is both copied from and written, or written twice, within one step: its order is not defined."""
        read: set[tuple[int, int]] = set()
        src_blocks = {block for copy in copies for block in copy.src_block_ids}
        dst_blocks = {block for copy in copies for block in copy.dst_block_ids}
        ensure(not src_blocks & dst_blocks, "overlap", f"blocks {src_blocks & dst_blocks} are source and destination")
        written: set[tuple[int, int]] = set()
        for copy in copies:
            group, slots_of = copy.group, self.memories[copy.group].range_slots
            read |= {(group, slot) for slot in slots_of(copy.src_block_ids, copy.src_start, copy.num_tokens)}
            slots = {(group, slot) for slot in slots_of(copy.dst_block_ids, copy.dst_start, copy.num_tokens)}
            ensure(not written & slots, "overlap", f"{copy} writes slots that another copy of the step writes")
            written |= slots
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            groups = range(len(self.memories))
            slots = {(g, slot) for g in groups for slot in self._slots_to_compute(request_id, num_tokens, g)}
            ensure(not (written | read) & slots, "overlap", f"{request_id} computes slots that the step copies")
            written |= slots

    def _slots_to_compute(self, request_id: str, num_tokens: int, group: int) -> list[int]:
        size = self.memories[group].block_size
        table = self.runner.block_table(request_id, group)
        start = self.runner.num_computed(request_id)
        if start + num_tokens > len(table) * size:
            message = f"{request_id}: {len(table)} blocks for {start} + {num_tokens} tokens"
            raise SimulationFailure("table", message)
        spans = self._spans_of(request_id, num_tokens)
        return [table[p // size] * size + p % size for span in spans for p in range(*span)]

    def _apply(self, copies: tuple[KVCopy, ...]) -> None:
        writes = []
        for copy in copies:
            self._check_destination(copy)
            memory = self.memories[copy.group]
            writes += [(memory, slot, rec) for _, slot, rec in memory.moved(self._readers[copy.request_id], copy)]
            if copy.delta and copy.group == 0:
                self.token_counts[copy.request_id].num_turned += copy.num_tokens
        for memory, slot, record in writes:
            memory.slots[slot] = record

    def _check_destination(self, copy: KVCopy) -> None:
        first = copy.dst_start // self.memories[copy.group].block_size
        table = self.runner.block_table(copy.request_id, copy.group)
        mine = table[first : first + len(copy.dst_block_ids)]
        ensure(mine == list(copy.dst_block_ids), "table", f"{copy} does not write {copy.request_id}'s blocks {mine}")

    def _forward(self, scheduled: dict[str, int]) -> dict[str, list[int]]:
        for request_id, num_tokens in scheduled.items():
            if request_id in self._spans:
                self._compute_pass(request_id, self._spans[request_id])
            else:
                self._compute(request_id, num_tokens)
        sampled, verified = {}, {}
        for request_id, num_tokens in scheduled.items():
            reader = self._readers[request_id]
            num_accepted = self._num_accepted(request_id, num_tokens)
            num_rejected = len(self._drafts.get(request_id, ())) - num_accepted
            end = self.runner.num_computed(request_id) + num_tokens - num_rejected
            verified[request_id] = num_tokens - num_rejected
            self.num_accepted, self.num_rejected = self.num_accepted + num_accepted, self.num_rejected + num_rejected
            start = self.runner.num_computed(request_id)
            for group, memory in enumerate(self.memories):
                memory.read(reader, self.runner.block_table(request_id, group), end, memory.read_from(start))
            self.memory.remember(reader, end)
            if self.runner.samples(request_id, num_tokens):
                sampled[request_id] = [reader.sequence.token(p) for p in range(end - num_accepted, end + 1)]
        if scheduled:
            self.runner.advance(verified, sampled)
        return sampled

    def _num_accepted(self, request_id: str, num_tokens: int) -> int:
        """Drafts of this step, up to the first that the model would not have sampled."""
        drafts, sequence = self._drafts.get(request_id, []), self._readers[request_id].sequence
        first = self.runner.num_computed(request_id) + num_tokens - len(drafts)
        return next((i for i, draft in enumerate(drafts) if draft != sequence.token(first + i)), len(drafts))

    def _compute(self, request_id: str, num_tokens: int) -> None:
        reader, sequence = self._readers[request_id], self._readers[request_id].sequence
        start = self.runner.num_computed(request_id)
        inexact = []
        for group, memory in enumerate(self.memories):
            first = memory.read_from(start)
            context = memory.read(reader, self.runner.block_table(request_id, group), start, first)
            inexact += reader.inexact(context, first)
        inexact += self._inexact_states(request_id, start)
        taint = frozenset().union(*{record.taint for record in inexact})
        drafts = self._drafts.get(request_id, [])
        num_true = num_tokens - len(drafts) + self._num_accepted(request_id, num_tokens)
        tokens = [*self.runner.input_tokens(request_id, num_tokens - len(drafts)), *drafts]
        slots_of = [self._slots_to_compute(request_id, num_tokens, group) for group in range(len(self.memories))]
        for index, slots in enumerate(zip(*slots_of, strict=True)):
            position = start + index
            if index >= num_true:
                self._write(slots, Record(tokens[index], position, MIXED, REJECTED))
                continue
            record = sequence.exact(position)
            if tokens[index] != fed(record.token):
                message = f"feeds token {tokens[index]} at position {position}, wants {fed(record.token)}"
                raise SimulationFailure("input", f"{request_id} {message}")
            if reader.features:
                self._check_encoded(reader, position)
            if inexact:
                record = Record(record.token, position, MIXED, taint, record.shift)
            self._write(slots, record)
        self._note_states(request_id, start + num_tokens, taint, is_exact=not inexact)
        prompt_end = min(start + num_tokens, sequence.num_prompt_tokens)
        self.token_counts[request_id].computed.update(range(start, prompt_end))

    def _compute_pass(self, request_id: str, spans: tuple[tuple[int, int], ...]) -> None:
        """The holes of a request, one behind the other: each sees what was copied and computed in front of it."""
        reader, sequence = self._readers[request_id], self._readers[request_id].sequence
        table, size = self.runner.block_table(request_id), self.memory.block_size
        for start, end in spans:
            context = self.memory.read(reader, table, start, 0)
            inexact = reader.inexact(context, 0)
            taint = frozenset().union(*{record.taint for record in inexact})
            for position in range(start, end):
                record = sequence.exact(position)
                mixed = Record(record.token, position, MIXED, taint, record.shift)
                self.memory.slots[table[position // size] * size + position % size] = mixed if inexact else record
            self.token_counts[request_id].computed.update(range(start, min(end, sequence.num_prompt_tokens)))

    def _inexact_states(self, request_id: str, start: int) -> list[Record]:
        """What a request goes on from in recurrent layers, as far as it is not exact. Here there are none."""
        return []

    def _note_states(self, request_id: str, end: int, taint: frozenset[Owner], *, is_exact: bool) -> None:
        """A request has computed up to `end`: its states are those."""

    def _write(self, slots: tuple[int, ...], record: Record) -> None:
        """One token's KV, in the layers of every group."""
        for memory, slot in zip(self.memories, slots, strict=True):
            memory.slots[slot] = record
