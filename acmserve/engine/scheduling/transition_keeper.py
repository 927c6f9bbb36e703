"""Which transitions of recurrent layers the workers record: those between states that a move may need.

    sequence   [ ...... ][ first foldable piece ][ .... )[ ...... )[ ...... )[ .. | answer .. )
    steps      not needed: no move begins here          recorded   recorded   recorded on and on
    named                                                        ^         ^      ^           ^ once the turn has ended
                                                                                  if a state was kept there

A move begins behind a piece that was folded. So a session request that names none has nothing recorded. A transition
begins with a block of the recurrent groups, or where a state was kept within one. It goes on over the steps behind,
until a chunk ends with a block of the prompt, or the turn does. Where a state was kept in front of the answer, it ends
there, and another one begins. A short convolution has no transition.

Knows requests, positions and block tables. What is known of the recorded ones is in `leaps/transitions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling.leaps.transitions import TransitionIndex
from acmserve.engine.worker.copies import TransitionRecord
from acmserve.errors import IntegrityError
from acmserve.plan.source import KeptState, ServedSequence

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import KVCacheManager, Request


@dataclass(frozen=True, slots=True)
class _Recording:
    """A transition that the steps of one request record, over tokens `[start, end)` so far."""

    number: int
    start: int
    end: int


class TransitionKeeper:
    """See the module. `may_move` is asked once a step whether recorded transitions are of any use."""

    def __init__(
        self,
        manager: KVCacheManager,
        groups: KVGroups,
        live: LiveRequests,
        max_bytes: int,
        may_move: Callable[[], bool],
    ) -> None:
        self.index = TransitionIndex(max_bytes)
        self._manager = manager
        # vLLM may keep states within blocks, where one hash covers less than a block. Nothing is recorded there.
        self._groups = groups.composed if groups.leading.block_size == groups.hash_block_size else ()
        self._live = live
        self._may_move = may_move
        self._records: list[TransitionRecord] = []
        self._open: dict[str, _Recording] = {}

    def finish_step(self, num_scheduled: Mapping[str, int]) -> bool:
        """The step is built: whether the workers record anything in it. vLLM has not advanced the requests yet."""
        if self._groups and self._may_move():
            for session, request in self._live:
                num_tokens = num_scheduled.get(request.request_id, 0)
                if num_tokens and session.foldable and session.hidden_from is None:
                    self._record(session, request, num_tokens)
        return bool(self._records)

    @property
    def is_noted(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._records or self.index.num_dropped)

    def take(self) -> tuple[tuple[TransitionRecord, ...], tuple[int, ...]]:
        """What this step records, and what the workers may forget behind its moves."""
        records, self._records = tuple(self._records), []
        return records, self.index.take_dropped()

    def finish(self, request_id: str, source: ServedSequence) -> None:
        """A turn has ended, and left `source`. What was recorded up to a state that was kept there counts."""
        recording = self._open.get(request_id)
        kept = source.last_state(source.num_tokens)
        if recording is not None and kept is not None and kept.num_tokens == recording.end:
            self._end(request_id, recording, kept)

    def drop(self, request_id: str) -> None:
        """What is being recorded of a request comes to no state: it has finished, or lost its blocks."""
        recording = self._open.pop(request_id, None)
        if recording is not None and recording.number in self.index:
            self.index.drop(recording.number)

    def _record(self, session: SessionRequest, request: Request, num_tokens: int) -> None:
        """The tokens of this step go to what is being recorded, or begin something."""
        size, request_id = self._groups[0].block_size, request.request_id
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        recording, state = self._open.get(request_id), session.answer_state
        if recording is not None and state is not None and state.num_tokens == recording.end == start:
            self._end(request_id, recording, state)
            recording = None
        if recording is None or recording.end != start or recording.number not in self.index:
            self.drop(request_id)
            recording = self._begun(session, start)
        if recording is None:
            return
        key = request.block_hashes[end // size - 1] if end <= request.num_prompt_tokens and not end % size else None
        if key is not None and self.index.knows(key, recording.start):
            self.drop(request_id)
            return
        number, block = recording.number or self.index.begin(start), (end - 1) // size
        tables = self._manager.get_blocks(request_id).blocks
        blocks = tuple((group.index, tables[group.index][block].block_id) for group in self._groups)
        self.index.go_on(number)
        self._records.append(TransitionRecord(number, blocks, end - recording.start, key is not None))
        self._open[request_id] = _Recording(number, recording.start, end)
        if key is not None:
            del self._open[request_id]
            self.index.name(number, key)

    def _end(self, request_id: str, recording: _Recording, state: KeptState) -> None:
        """What was recorded comes to a state that was kept."""
        del self._open[request_id]
        if recording.number in self.index:
            self.index.name(recording.number, state.key)

    def _begun(self, session: SessionRequest, start: int) -> _Recording | None:
        """A transition from token `start` on, without a number. None where no move begins with a state there."""
        is_inside = bool(start % self._groups[0].block_size)
        if is_inside and all(state.num_tokens != start for state in session.states_left):
            return None
        return _Recording(0, start, start) if start >= min(end for _, end in session.foldable) else None

    def check_integrity(self) -> None:
        """Raise `IntegrityError` for a request that has finished, or records that no step took. And see the index."""
        if strays := [request_id for request_id in self._open if self._live.get(request_id) is None]:
            raise IntegrityError(f"transitions: those of {len(strays)} finished requests are recorded: {strays[:3]}")
        if self._records:
            raise IntegrityError(f"transitions: {len(self._records)} records wait between steps")
        self.index.check_integrity()
