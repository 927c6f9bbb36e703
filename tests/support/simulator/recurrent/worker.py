"""A worker with recurrent layers: one state for each block of a recurrent group, as vLLM's `align` mode keeps them.

    before the forward pass    the state of the step before is copied into the block of this step's end
    connector                  what is composed takes its place, and in front of an answer it is kept elsewhere, too
    forward                    the state has to be the one in front of the step's first token, and becomes that behind
                               its last one

A state is a record, as KV is: that of the last token it has seen. It is exact, or the session's own. A composition is
checked for what it is made of. That is the request's own state where the jump begins, the source's at both ends, and
transitions over the very tokens that move. Of a short convolution the source's state at the end is all that counts. The
state behind a prefix of the request's own is copied as it is.

Sources (vLLM 0.32): worker/mamba_utils.py `preprocess_mamba` (runner V1), `preprocess_mamba_align_fused_kernel` (V2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from acmserve.engine.worker.copies import KVCopy, RecordedTransition, StateCopy, StateMove, StepCopies
from acmserve.engine.worker.messages import TransitionsRecorded
from tests.support.simulator.failure import SimulationFailure, ensure
from tests.support.simulator.slots import Reader
from tests.support.simulator.truth import MIXED, Owner, Record
from tests.support.simulator.worker import Worker

TRANSITION_BYTES = 1000


class RecurrentWorker(Worker):
    """See the module. `num_groups` recurrent groups stand behind those of the other memories.

    The last `num_convolutions` of them are of short convolutions.
    """

    num_groups = 1
    num_convolutions = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_composed = self.num_restored = self.num_kept = 0
        self._states: dict[tuple[int, int], Record] = {}
        self._columns: dict[str, int] = {}
        self._transitions: dict[int, tuple[int, ...]] = {}

    @property
    def _groups(self) -> range:
        return range(len(self.memories), len(self.memories) + self.num_groups)

    @property
    def _composed_groups(self) -> range:
        return self._groups[: self.num_groups - self.num_convolutions]

    def execute(self, output: SchedulerOutput, handed_out: Iterable[int]) -> ModelRunnerOutput:
        blocks = tuple(handed_out)
        for place in [place for place in self._states if place[1] in set(blocks)]:
            del self._states[place]
        metadata: Any = output.kv_connector_metadata
        step = getattr(metadata, "step", StepCopies())
        result = super().execute(output, blocks)
        facts: dict[int, RecordedTransition | None] = {}
        for record in step.records:
            ensure(record.number in self._transitions, "table", f"{record} names no tokens of the step")
            facts[record.number] = RecordedTransition(0.5, TRANSITION_BYTES)
        if facts:
            result.kv_connector_output = KVConnectorOutput(kv_connector_worker_meta=TransitionsRecorded(facts))
        return result

    def _encode(self, output: SchedulerOutput) -> None:
        """Called once the runner has taken the step in: carry every state to where the step's end will be."""
        super()._encode(output)
        gone = (
            output.finished_req_ids
            | (output.preempted_req_ids or set())
            | {r.req_id for r in output.scheduled_new_reqs}
        )
        for request_id in gone | output.scheduled_cached_reqs.resumed_req_ids:
            self._columns.pop(request_id, None)
        carried: dict[tuple[int, int], Record | None] = {}
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            start, size = self.runner.num_computed(request_id), self.memory.block_size
            before = self._columns.get(request_id, (start - 1) // size)
            column = self._columns[request_id] = (start + num_tokens - 1) // size
            for group in self._groups if before not in (-1, column) else ():
                table = self.runner.block_table(request_id, group)
                carried[group, table[column]] = self._states.get((group, table[before]))
        for place, state in carried.items():
            self._put(place, state)
        self._take_records(output)

    def _take_records(self, output: SchedulerOutput) -> None:
        """The tokens whose transitions this step records, and the numbers that are forgotten behind its moves."""
        metadata: Any = output.kv_connector_metadata
        step = getattr(metadata, "step", StepCopies())
        self._dropped = step.dropped
        places = {
            (self._groups[0], self._place(request_id, self._groups[0])[1]): request_id
            for request_id in output.num_scheduled_tokens
        }
        for record in step.records:
            request_id = places.get(record.block_ids[0])
            if request_id is None:
                raise SimulationFailure("table", f"{record} is of no request of the step")
            wanted = tuple(self._place(request_id, group) for group in self._composed_groups)
            ensure(record.block_ids == wanted, "table", f"{record} for blocks {wanted}")
            start = self.runner.num_computed(request_id)
            end = start + output.num_scheduled_tokens[request_id]
            sequence = self._readers[request_id].sequence
            seen = self._transitions.get(record.number, ()) if record.num_tokens > end - start else ()
            tokens = seen + tuple(sequence.token(p) for p in range(start, end))
            ensure(len(tokens) == record.num_tokens, "token", f"{record}: {len(tokens)} tokens are recorded")
            self._transitions[record.number] = tokens

    def _place(self, request_id: str, group: int) -> tuple[int, int]:
        return group, self.runner.block_table(request_id, group)[self._columns[request_id]]

    def _put(self, place: tuple[int, int], state: Record | None) -> None:
        self._states.pop(place, None)
        if state is not None:
            self._states[place] = state

    def _check_overlap(self, copies: tuple[Any, ...], output: SchedulerOutput) -> None:
        super()._check_overlap(tuple(copy for copy in copies if isinstance(copy, KVCopy)), output)
        moves = [copy for copy in copies if isinstance(copy, StateMove)]
        kept = [copy for copy in copies if isinstance(copy, StateCopy)]
        moved = {move.dst_block_id for move in moves}
        written = {self._place(r, group)[1] for r in output.num_scheduled_tokens for group in self._groups} | moved
        read = {b for m in moves for b in (m.before, m.after, m.there) if b not in {None, m.dst_block_id}}
        ensure(not written & read, "overlap", f"states in blocks {written & read} are read and written")
        taken = [copy.dst_block_id for copy in kept]
        touched = written | read | {copy.src_block_id for copy in kept}
        is_alone = len(set(taken)) == len(taken) and not touched & set(taken)
        ensure(is_alone, "overlap", f"states are kept in blocks {taken}, beside {touched}")
        ensure(not moved & {copy.src_block_id for copy in kept}, "overlap", f"{kept} read what {moves} write")

    def _apply(self, copies: tuple[Any, ...]) -> None:
        super()._apply(tuple(copy for copy in copies if isinstance(copy, KVCopy)))
        for copy in (copy for copy in copies if isinstance(copy, StateCopy)):
            self._states[copy.group, copy.dst_block_id] = self._kept_state(copy)
        moves = [copy for copy in copies if isinstance(copy, StateMove)]
        for move, state in [(move, self._moved_state(move)) for move in moves]:
            self._states[move.group, move.dst_block_id] = state
        for number in self._dropped:
            self._transitions.pop(number, None)

    def _kept_state(self, copy: StateCopy) -> Record:
        """The request's own state in front of the step."""
        self.num_kept += 1
        start, reader = self.runner.num_computed(copy.request_id), self._readers[copy.request_id]
        ensure(start == copy.position, "position", f"{copy}: the step begins at {start}")
        block = self.runner.block_table(copy.request_id, copy.group)[(start - 1) // self.memory.block_size]
        ensure(block == copy.src_block_id, "table", f"{copy}: the state in front of the step stands in {block}")
        return reader.check(self._states.get((copy.group, block)), start - 1, "keeps the state at")

    def _moved_state(self, move: StateMove) -> Record:
        """The state that a move leaves, once all that it is made of was checked."""
        reader = self._readers[move.request_id]
        place = self._place(move.request_id, move.group)
        ensure(place == (move.group, move.dst_block_id), "table", f"{move}: the step's state stands in {place}")
        end = move.dst_start + move.num_tokens
        if move.there is None:
            self.num_restored += 1
            ensure(move.before is None and not move.transitions, "table", f"{move}: nothing is composed there")
            ensure(move.src_start == move.dst_start, "position", f"{move}: a prefix of its own stands elsewhere")
            return reader.check(self._states.get((move.group, move.after)), end - 1, "restores")
        self.num_composed += 1
        reader.check(self._states.get((move.group, move.there)), move.dst_start - 1, "composes a state from")
        after = self._states.get((move.group, move.after))
        self._check_state_of_source(reader, after, move.src_start + move.num_tokens - 1)
        if move.group in self._composed_groups:
            self._check_what_leads_there(reader, move)
        else:
            ensure(move.before is None, "table", f"{move}: a short convolution needs no state in front")
        last = reader.sequence.token(end - 1)
        assert reader.owner is not None
        return reader.check(Record(last, end - 1, MIXED, frozenset({reader.owner})), end - 1, "composes")

    def _check_what_leads_there(self, reader: Reader, move: StateMove) -> None:
        """The source's state in front of what moves, and transitions over it."""
        if move.before is None:
            raise SimulationFailure("table", f"{move}: nothing is composed without a state in front")
        self._check_state_of_source(reader, self._states.get((move.group, move.before)), move.src_start - 1)
        end = move.dst_start + move.num_tokens
        for number in move.transitions:
            ensure(number in self._transitions, "poison", f"{move}: transition {number} was never recorded")
        covered = tuple(token for number in move.transitions for token in self._transitions[number])
        wanted = tuple(reader.sequence.token(p) for p in range(move.dst_start, end))
        ensure(covered == wanted, "token", f"{move}: its transitions are over {covered}, and {wanted} move")

    def _check_state_of_source(self, reader: Reader, state: Record | None, position: int) -> None:
        where = f"{reader.request_id} composes from the state at {position}"
        if state is None:
            raise SimulationFailure("poison", f"{where}: nobody wrote it")
        ensure(state.position == position, "position", f"{where}: it stands at {state.position}")
        self.memory._check_source(reader, state, where)

    def _inexact_states(self, request_id: str, start: int) -> list[Record]:
        reader = self._readers[request_id]
        if not start:
            return []
        found = [self._states.get(self._place(request_id, group)) for group in self._groups]
        states = [reader.check(state, start - 1, "goes on from the state at") for state in found]
        return [state for state in states if not reader.is_exact(state, start - 1)]

    def _note_states(self, request_id: str, end: int, taint: frozenset[Owner], *, is_exact: bool) -> None:
        exact = self._readers[request_id].sequence.exact(end - 1)
        state = exact if is_exact else Record(exact.token, end - 1, MIXED, taint, exact.shift)
        for group in self._groups:
            self._states[self._place(request_id, group)] = state
