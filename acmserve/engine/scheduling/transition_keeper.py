"""Which transitions of recurrent layers the workers record: those of chunks between states that a move may need.

    prompt   [ ...... ][ first foldable piece ][ .... )[ ...... )[ ...... )[ .. end)
    chunks             not needed: no move begins here  recorded  recorded   ends at no state

A move begins behind a piece that was folded. So a session request that names none has nothing recorded. A chunk counts
that ends with a block of the recurrent groups, and begins with one, or where an earlier turn left its state. A short
convolution has no transition.

Knows requests, positions and block tables. What is known of the recorded ones is in `leaps/transitions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling.leaps.transitions import TransitionIndex
from acmserve.engine.worker.copies import TransitionRecord

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import KVCacheManager, Request


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

    def _record(self, session: SessionRequest, request: Request, num_tokens: int) -> None:
        size, first = self._groups[0].block_size, min(end for _, end in session.foldable)
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        if start < first or end % size or end > request.num_prompt_tokens:
            return
        if start % size and all(state.num_tokens != start for state in session.states_left):
            return
        number = self.index.add(request.block_hashes[end // size - 1], start)
        if number is None:
            return
        tables = self._manager.get_block_ids(request.request_id)
        blocks = tuple((group.index, tables[group.index][end // size - 1]) for group in self._groups)
        self._records.append(TransitionRecord(number, blocks))
