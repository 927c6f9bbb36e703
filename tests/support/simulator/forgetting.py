"""What a forgetting request must leave behind, told without the engine's own reckoning.

Before it is sent: the cache keys of its session's sources and of the session's live requests, each with the tokens it
stands for. After: no block may be found under a key that belongs to text which the new prompt does not repeat, or to
moved KV. A key names a block's whole prefix and may name several blocks. All of them must be gone. So must every
transition of recurrent layers.

What a source or a live request of another session has the key of, too, must still be there, if it was there before. But
for blocks that were precomputed for the session that forgets: they go, whoever else has their key.

What a live request computed after an earlier redaction stands under keys that nobody can make again. It goes with that
request. KV that a source store with narrow limits dropped earlier is not looked for: acmserve says that it stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from acmserve.plan.lineage import LineageMark
from tests.support.simulator.failure import ensure
from tests.support.simulator.scripts import Turn


class Forgetting:
    """A snapshot of what the session of `turn` left in the engine. Make it before the turn is sent."""

    def __init__(self, scheduler: Scheduler, turn: Turn) -> None:
        connector: Any = scheduler.connector
        self._turn = turn
        self._move_executor = connector.move_executor
        self._transitions = connector.transitions.index
        self._doomed: list[bytes] = []
        self._session = (turn.session, turn.salt)
        for source in (source for owner, source in connector.store.items() if owner.session == self._session):
            self._doom(source.tokens.tolist(), source.marks, source.block_hashes)
            self._doomed += source.kept_keys
        self._others = self._keys_of_others(scheduler)
        precomputed = connector.precompute.blocks._blocks
        found = {key: self._block(key) for key in self._others}
        self._to_stay = {key for key, block in found.items() if block and block.block_id not in precomputed}
        live = [session for session, _ in connector.live if session.owner.session == self._session]
        self.num_live = len(live)
        for session in live:
            request = scheduler.requests[session.request_id]
            self._doom(list(request.all_token_ids), session.marks, request.block_hashes[: session.hidden_from])
            self._doomed += [state.key for state in session.states_left]

    def check(self) -> int:
        """Raise unless all of it is gone, and return the number of keys that had to go."""
        lost = [key for key in self._to_stay if self._block(key) is None]
        ensure(not lost, "forgotten", f"{self._turn.request_id}: {len(lost)} keys of other sessions name no block now")
        self._doomed = [key for key in self._doomed if key not in self._others]
        left = [key for key in self._doomed if self._is_left(key)]
        message = f"{self._turn.request_id}: {len(left)} of {len(self._doomed)} keys still name a block"
        ensure(not left, "forgotten", message)
        return len(self._doomed)

    def _block(self, key: bytes) -> Any:
        return self._move_executor.cache.block(key, 0)

    def _is_left(self, key: bytes) -> bool:
        """Whether a block of any KV cache group is found under `key`, or a transition."""
        groups = self._move_executor.groups.groups
        return key in self._transitions._by_end or any(
            self._move_executor.cache.block(key, group.index) is not None for group in groups
        )

    def _keys_of_others(self, scheduler: Scheduler) -> set[bytes]:
        connector: Any = scheduler.connector
        keys: set[bytes] = set()
        for held, source in connector.store.items():
            keys |= {*source.block_hashes, *source.kept_keys} if held.session != self._session else set()
        for session, request in connector.live:
            keys |= set(request.block_hashes) if session.owner.session != self._session else set()
        return keys

    def _doom(self, tokens: list[int], marks: Iterable[LineageMark], keys: Sequence[bytes]) -> None:
        size = self._move_executor.block_size
        first_mark = min((mark.position for mark in marks), default=len(tokens))
        for index, key in enumerate(keys):
            end = (index + 1) * size
            if tuple(tokens[:end]) != self._turn.prompt[:end] or first_mark < end:
                self._doomed.append(key)
