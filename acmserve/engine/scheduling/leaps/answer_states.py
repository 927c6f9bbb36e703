"""The states in front of answers: kept, so that a move may begin or end there, and a prompt go on from there.

    prompt     [ whole blocks )[ rest )         vLLM keeps the state behind the blocks
    answer                             [ decoded ....)      each step overwrites the state in the block that it is in
    kept                               ^ copied into a block of its own, in front of the answer's first step

Such a state is a block of every recurrent group. It is found under a key of its own, like the state where a turn ended.
It goes like everything else in the prefix cache when others need room.

Decision: it is copied in front of the step that overwrites it, and not behind the one that made it. Workers copy there.
A request whose prompt ends with a block needs none, for vLLM keeps the state there.

Decision: boundaries come first. Of the room that they leave, the longest answers have their states.

Knows requests, positions and blocks. Does not know moves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.admission import may_be_source
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.served_source import plan_answer_key
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.vllm import block_pool
from acmserve.engine.worker.copies import StateCopy
from acmserve.errors import IntegrityError
from acmserve.plan.rules.states import longest_answers
from acmserve.plan.source import KeptState

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import KVCacheBlock, KVCacheManager, Request


class AnswerStates:
    """See the module. `num_left` says how many blocks a request's boundaries leave, `may_move` whether states move."""

    def __init__(
        self,
        manager: KVCacheManager,
        groups: KVGroups,
        live: LiveRequests,
        num_left: Callable[[str], int],
        may_move: Callable[[], bool],
    ) -> None:
        self._manager = manager
        # vLLM may keep states within blocks, where one hash covers less than a block. None is kept there.
        self._groups = groups.recurrent if groups.leading.block_size == groups.hash_block_size else ()
        self._live = live
        self._num_left = num_left
        self._may_move = may_move
        self._held: list[KVCacheBlock] = []

    def finish_step(self, num_scheduled: Mapping[str, int], leapt: Container[str]) -> list[StateCopy]:
        """The step is built, and these requests leapt in it: the copies of states that it overwrites.

        vLLM has not advanced the requests yet.
        """
        copies: list[StateCopy] = []
        if self._groups and self._may_move():
            for session, request in self._live:
                is_there = request.num_computed_tokens == request.num_prompt_tokens
                if is_there and request.request_id in num_scheduled and request.request_id not in leapt:
                    copies += self._keep(session, request)
        return copies

    def take_held(self) -> list[KVCacheBlock]:
        """The blocks that this step fills. Whoever takes them frees them behind it."""
        held, self._held = self._held, []
        return held

    def _keep(self, session: SessionRequest, request: Request) -> list[StateCopy]:
        """The copies for a request that stands behind its prompt. None where there is no room, or the state is kept."""
        pool, request_id = self._manager.block_pool, request.request_id
        end, size = request.num_prompt_tokens, self._groups[0].block_size
        numbers = [group.index for group in self._groups]
        if not self._may_keep(session, request):
            return []
        key = plan_answer_key(session, request.block_hashes[: end // size], size)
        if session.answer_state is not None and session.answer_state.key != key:
            # It was preempted since, and what had been moved was computed.
            block_pool.release_tail(pool, session.answer_state.key, max(numbers) + 1)
            session.answer_state = None
        room = self._num_left(request_id) // len(numbers)
        blocks: list[KVCacheBlock] = []
        if room and any(block_pool.cached_block(pool, key, number) is None for number in numbers):
            blocks = block_pool.take_named(pool, numbers, key, end, self._manager.watermark_blocks)
            room = room if blocks else 0
        if not room:
            return []
        session.answer_state = KeptState(end, key, is_before_answer=True)
        session.states = longest_answers(session.states, room - 1)
        self._held += blocks
        tables = self._manager.get_blocks(request_id).blocks
        pairs = zip(numbers, blocks, strict=True) if blocks else ()
        return [
            StateCopy(request_id, number, end, tables[number][end // size].block_id, block.block_id)
            for number, block in pairs
        ]

    def _may_keep(self, session: SessionRequest, request: Request) -> bool:
        """Whether a state behind the prompt is of use, and a key can name it: not what only looks like these tokens."""
        end = request.num_prompt_tokens
        is_named = may_be_source(request) and len(session.prompt) == end and bool(end % self._groups[0].block_size)
        return is_named and session.hidden_from is None and not session.unrecorded

    def check_integrity(self) -> None:
        """Raise `IntegrityError` for blocks that wait to be freed between steps."""
        if self._held:
            raise IntegrityError(f"answer states: {len(self._held)} blocks are held between steps")
