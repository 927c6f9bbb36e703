"""Plans the jumps of one scheduler's requests, and ends their chunks where the next jump begins.

    plan          from where a request stands: over one piece of its plan, or as a pass over many (`passes.py`)
    cap_behind    a chunk ends where the next segment can be copied

What is not cached there is refused, so that it is not asked for again. Its block hashes are made anew where a mark of
lineage goes with it.

Knows sessions, plans and hashes. Takes no references, and advances nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.receipt import KVOrigin
from acmserve.engine.requests.session_request import ReusableRange, SessionRequest
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.leaps.passes import plan_pass
from acmserve.engine.scheduling.leaps.runs import FindPath, Jump, Lookup
from acmserve.engine.scheduling.leaps.states import MIN_RESTORED_TOKENS
from acmserve.engine.scheduling.source_gone import why_gone
from acmserve.engine.vllm import block_pool

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request

_MAX_REHASHED_TOKENS = 16_384
"""Behind a refused segment. Where more follows, its mark stays, and nobody waits for thousands of hashes."""


class JumpPlanner:
    """See the module. A pass computes less than `max_pass_tokens` in its holes. Where that is 0, there is none.

    The requests in `crowded` get none, either: vLLM had too few tokens for the last one that was planned for them.
    """

    def __init__(
        self, lookup: Lookup, groups: KVGroups, find_path: FindPath, max_pass_tokens: Callable[[], int]
    ) -> None:
        self._lookup = lookup
        self._groups = groups
        self._where = (lookup, groups, find_path)
        self._max_pass_tokens = max_pass_tokens
        self.crowded: set[str] = set()

    @property
    def has_passes(self) -> bool:
        """Whether the holes of a request cost one forward pass, and not one each."""
        return self._max_pass_tokens() > 0

    def plan(self, session: SessionRequest, request: Request, position: int) -> Jump | None:
        """A jump from `position`. Refuses what is missing there."""
        changed = request.num_tokens
        while (jump := self._plan_at(session, position)) is None:
            segment = session.segment_at(position)
            if segment is None:
                break
            changed = min(changed, self._refuse(session, request, segment, position))
        self._rehash(request, changed)
        return jump

    def _plan_at(self, session: SessionRequest, position: int) -> Jump | None:
        max_tokens = 0 if session.precompute or session.request_id in self.crowded else self._max_pass_tokens()
        if max_tokens:
            return plan_pass(session, position, self._lookup, self._groups, max_tokens)
        if session.segment_at(position) is None:
            return None
        return jumping.plan_jump(session, position, *self._where)

    def restores(self, session: SessionRequest, position: int) -> bool:
        """Whether a jump from `position` on leads to a state of the request's own prefix, and is worth a step."""
        segment = session.segment_at(position) if self._groups.recurrent else None
        if segment is None or segment.origin is not KVOrigin.KEPT:
            return False
        jump = self._plan_at(session, position)
        return jump is not None and jump.end - position >= MIN_RESTORED_TOKENS

    def cap_behind(self, session: SessionRequest, request: Request, at: int, num_new: int, *, is_cut: bool) -> int:
        """Tokens of the chunk `[at, +num_new)` that are computed now. With `is_cut` a jump of this step ends at `at`.

        Where that jump was cut for its length one token is. The next jump follows.
        """
        rest = session.segment_at(at) if is_cut else None
        if rest is not None and jumping.is_available(session, at, *self._where):
            return min(num_new, 1)
        if rest is not None and rest.origin is KVOrigin.MOVED and not self._groups.is_lone:
            reason = why_gone(rest, at, self._lookup, self._groups)
            session.fallback_reason = session.fallback_reason or reason
        changed = request.num_tokens
        while (stop := session.next_stop(at)) is not None and stop < at + num_new:
            segment = session.segment_at(stop)
            assert segment is not None
            if jumping.is_available(session, stop, *self._where):
                num_new = stop - at
                break
            changed = min(changed, self._refuse(session, request, segment, stop))
        self._rehash(request, changed)
        return num_new

    def _refuse(self, session: SessionRequest, request: Request, segment: ReusableRange, position: int) -> int:
        """The token from which on the block hashes are others now. The end of the request where none changes."""
        end = jumping.next_available(session, segment, position, *self._where)
        take_back = request.num_tokens - segment.dst_start <= _MAX_REHASHED_TOKENS
        reason = why_gone(segment, position, self._lookup, self._groups)
        changed = session.refuse(segment, position, end, reason, take_back=take_back)
        return request.num_tokens if changed is None else changed

    def _rehash(self, request: Request, changed: int) -> None:
        """Once for all that was refused together: a prompt of many small segments is hashed once, not once for each."""
        if changed < request.num_tokens:
            block_pool.rehash(request, changed // self._groups.hash_block_size)
