"""Carries edit plans out, step by step, around vLLM's own scheduler.

One step, seen from here (`step.py` calls in this order):

    begin_step      before anything is allocated: find and pin the source blocks that may be copied now;
                    a running request that stands at a segment gets its computed position advanced over it
    on_lookup       a waiting request asks how far behind its prefix hit it may leap
    cap_chunk       a prefill chunk ends exactly where the next segment begins
    on_admitted     a waiting request got its blocks
    on_preempted    a request lost its blocks: its plan is armed again
    finish_step     what was scheduled becomes copies; what was not is rolled back; pins go to vLLM's fence

Source blocks are looked up in `begin_step` only. vLLM registers block hashes when it schedules, before the KV is
computed, so a block found later in the same step may hold nothing yet. They are pinned from there until the step that
copies them is through. They are pinned only when enough free blocks remain for the request itself. Else its tokens are
computed.

It uses the public methods of vLLM's block pool and of `Request`. Private ones are reached through
`engine/vllm/block_pool.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.receipt import KVOrigin, Span
from acmserve.engine.requests.request_plan import RequestPlan
from acmserve.engine.requests.session_request import ReusableRange, SessionRequest
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.background_blocks import BackgroundBlocks
from acmserve.engine.scheduling.cache_view import CacheView
from acmserve.engine.scheduling.leaps.runs import FindPath, Jump
from acmserve.engine.scheduling.source_gone import SOURCE_GONE, why_gone
from acmserve.engine.scheduling.source_pins import SourcePins
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.hooks import Padding
from acmserve.engine.vllm.window_tables import WindowTables
from acmserve.engine.worker.copies import StepCopy
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    from acmserve.engine.vllm.lineage_hasher import LineageHasher
    from acmserve.engine.vllm.types import BlockPool, KVCacheBlock, KVCacheManager, Request

NO_ROOM = "kv_cache_full"

_MAX_REHASHED_TOKENS = 16_384
"""Behind a refused segment. Where more follows, its mark stays, and nobody waits for thousands of hashes."""


class MoveExecutor:
    """The copies of one scheduler's steps."""

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        groups: KVGroups,
        live: LiveRequests,
        precompute: BackgroundBlocks,
        find_path: FindPath = jumping.no_path,
    ) -> None:
        self._manager = kv_cache_manager
        self._pool = kv_cache_manager.block_pool
        self._live = live
        self._precompute = precompute
        self.groups = groups
        self.block_size = groups.hash_block_size
        self.windows = WindowTables(kv_cache_manager, groups)
        self.cache = CacheView(kv_cache_manager, groups, self.windows)
        self._where = (self.cache.block, groups, find_path)
        self._jumps: dict[str, Jump] = {}
        self._admitted: set[str] = set()
        self._wanted: dict[str, int] = {}
        self._considered: set[str] = set()
        self._delayed: set[str] = set()
        self._pins = SourcePins(self._pool)

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def start(self, session: SessionRequest, request: Request, plan: RequestPlan, hasher: LineageHasher | None) -> None:
        """A session request has its plan. `hasher` makes the hashes that follow those of the plan."""
        session.is_planned = True
        session.planned, session.anew, session.choice = plan.segments, plan.anew, plan.choice
        session.segments, session.marks[:] = list(plan.segments), plan.marks
        session.leaves_out = plan.leaves_out
        session.fallback_reason = session.fallback_reason or plan.fallback_reason
        for segment in plan.gone:
            session.refuse(segment, segment.dst_start, segment.dst_end, SOURCE_GONE)
        if plan.block_hashes and hasher is not None:
            block_pool.set_hasher(request, hasher, plan.block_hashes)

    def remove(self, request_id: str) -> None:
        """The request finished or was aborted."""
        self._wanted.pop(request_id, None)
        self.windows.drop(request_id)

    def withhold(self, request_ids: Iterable[str]) -> None:
        """These requests are kept out of this step: nothing is pinned for them."""
        for request_id in request_ids:
            self._wanted.pop(request_id, None)

    def begin_step(self, running: Sequence[Request], waiting: Iterable[Request]) -> None:
        """Pin sources and advance running requests. Call before vLLM's `schedule`.

        `waiting` yields the queued requests in the order in which vLLM will look at them.
        """
        self._considered.clear()
        self._delayed.clear()
        if not any(session.segments for session, _ in self._live):
            return
        self._pins.begin_step(self.cache.count_growth(running))
        for request in running:
            session = self._live.get(request.request_id)
            if session and session.segments:
                self._leap_running(session, request)
        # With recurrent groups none: a state is composed with that of the request, once it runs.
        for session, request in () if self.groups.recurrent else self._live.to_prepare(waiting, self._wanted):
            self._prepare_waiting(session, request, self._wanted.get(session.request_id))
        self._wanted.clear()

    def _leap_running(self, session: SessionRequest, request: Request) -> None:
        if session.segment_at(request.num_computed_tokens) is None:
            return
        jump = None if self._pins.is_spent else self._plan(session, request, request.num_computed_tokens)
        if self._pins.is_spent or (jump is not None and not self._pins.fits(jump)):
            self._delayed.add(session.request_id)
            return
        if jump is not None and jump.states:
            jump = jump.begun_at(self.cache.states(session.request_id, jump.start))
        if jump is not None and self._pin(session, jump, self.windows.num_copied_blocks(jump.start, jump.end)):
            self._jumps[session.request_id] = jump
            self.windows.pad(session.request_id, jump.start, jump.end)
            request.num_computed_tokens = jump.end

    def _prepare_waiting(self, session: SessionRequest, request: Request, asked_at: int | None) -> None:
        """Plan and pin a jump behind the prefix hit. vLLM counts that hit itself, later in the step.

        `asked_at` is what it counted in the step before. It is less than what is cached where vLLM wants to compute
        the last blocks of every hit.
        """
        if self._pins.is_spent:
            return
        hit = self.cache.prefix(request, asked_at)
        jump = self._plan(session, request, hit.num_tokens)
        if jump is not None and not self._pins.fits(jump):
            return
        self._considered.add(session.request_id)
        if jump is None:
            return
        num_needed = self.cache.count_needed(request, hit)
        if self._pin(session, jump, num_needed + self._manager.watermark_blocks):
            self._jumps[session.request_id] = jump
        else:
            self._pins.reserve(num_needed)

    def _plan(self, session: SessionRequest, request: Request, position: int) -> Jump | None:
        """A jump from `position`. Refuses what is missing there, so that it is not asked for again."""
        jump, changed = None, request.num_tokens
        while jump is None and (segment := session.segment_at(position)) is not None:
            jump = jumping.plan_jump(session, position, *self._where)
            if jump is None:
                changed = min(changed, self._refuse(session, request, segment, position))
        self._rehash(request, changed)
        return jump

    def _refuse(self, session: SessionRequest, request: Request, segment: ReusableRange, position: int) -> int:
        """The token from which on the block hashes are others now; the end of the request where none changes."""
        end = jumping.next_available(session, segment, position, *self._where)
        take_back = request.num_tokens - segment.dst_start <= _MAX_REHASHED_TOKENS
        reason = why_gone(segment, position, self.cache.block, self.groups)
        changed = session.refuse(segment, position, end, reason, take_back=take_back)
        return request.num_tokens if changed is None else changed

    def _rehash(self, request: Request, changed: int) -> None:
        """Once for all that was refused together: a prompt of many small segments is hashed once, not once for each."""
        if changed < request.num_tokens:
            block_pool.rehash(request, changed // self.block_size)

    def _pin(self, session: SessionRequest, jump: Jump, num_needed: int) -> bool:
        is_pinned = self._pins.pin(jump, num_needed)
        if not is_pinned:
            session.fallback_reason = session.fallback_reason or NO_ROOM
        return is_pinned

    def on_lookup(self, request_id: str, num_hit: int) -> int | None:
        """Tokens behind the prefix hit of a waiting request that will be copied. None: ask again next step."""
        session = self._live.get(request_id)
        if session is None:
            return 0
        session.num_hit = num_hit
        jump = self._jumps.pop(request_id, None)
        if self.groups.recurrent or session.segment_at(num_hit) is None:
            return 0
        if jump is not None and jump.start <= num_hit:
            jump = jumping.plan_trimmed(jump, num_hit)
            if jump is not None:
                self._jumps[request_id] = jump
                self.windows.expect(request_id, jump.start, jump.end)
                return jump.end - num_hit
        elif jump is None and request_id in self._considered:
            return 0
        self._wanted[request_id] = num_hit
        return None

    def cap_chunk(self, request: Request, num_computed: int, num_new: int) -> int:
        """Shorten a prefill chunk `[num_computed, +num_new)` so that it ends where the next segment begins.

        A chunk that begins where this step's jump was cut for its length computes one token. The next jump follows. A
        request whose jump has to wait for the next step computes none.
        """
        session = self._live.get(request.request_id)
        if session is None:
            return num_new
        if request.request_id in self._delayed:
            return 0
        jump = self._jumps.get(request.request_id)
        rest = session.segment_at(num_computed) if jump is not None and jump.end == num_computed else None
        if rest is not None and jumping.is_available(session, num_computed, *self._where):
            return min(num_new, 1)
        if rest is not None and rest.origin is KVOrigin.MOVED and not self.groups.is_lone:
            reason = why_gone(rest, num_computed, self.cache.block, self.groups)
            session.fallback_reason = session.fallback_reason or reason
        changed = request.num_tokens
        while (stop := session.next_stop(num_computed)) is not None and stop < num_computed + num_new:
            segment = session.segment_at(stop)
            assert segment is not None
            if jumping.is_available(session, stop, *self._where):
                num_new = stop - num_computed
                break
            changed = min(changed, self._refuse(session, request, segment, stop))
        self._rehash(request, changed)
        return num_new

    def on_admitted(self, request_id: str, precompute: Sequence[Span] = ()) -> None:
        """vLLM allocated blocks for a waiting request. `precompute` is what of its prefix hit was precomputed."""
        session = self._live.get(request_id)
        if session is not None:
            self._admitted.add(request_id)
            session.receipt_builder.admit(session.num_hit, precompute)
            session.carry_out(0, session.num_hit)

    def on_preempted(self, request: Request) -> int:
        """The request is about to lose its blocks. Call before vLLM resets its counts.

        Returns how many of its tokens have KV: not those that this very step would have copied or computed.
        """
        jump = self._jumps.pop(request.request_id, None)
        self.windows.drop(request.request_id)
        num_computed = jump.start if jump else request.num_computed_tokens
        session = self._live.get(request.request_id)
        if session is not None:
            session.receipt_builder.advance(num_computed)
            session.arm()
        return num_computed

    def finish_step(self, scheduled: Collection[str]) -> tuple[list[StepCopy], dict[str, Padding], list[KVCacheBlock]]:
        """Commit or roll back the jumps of this step.

        Returns the copies for the workers, the *running* requests that were advanced, each with the null blocks that
        its tables got, and the blocks that nobody needs behind this step: pinned ones, and those passed over. The
        caller hands these to vLLM's fence, last block first, so that the head of a source outlives its tail.
        """
        copies: list[StepCopy] = []
        leapt: dict[str, Padding] = {}
        freed: list[KVCacheBlock] = []
        for request_id, jump in self._jumps.items():
            entry = self._live.entry(request_id)
            assert entry is not None
            session, request = entry
            was_waiting = request_id in self._admitted
            if request_id in scheduled:
                padding, passed = self.windows.commit(request_id, jump.end)
                freed += passed
                copies += jumping.plan_copies(jump, request_id, self._manager.get_block_ids(request_id))
                session.receipt_builder.jump(jump.entries(), jump.path.norm if jump.path else None)
                if session.precompute:
                    session.inherited_from = self._precompute.inherit_jump(jump)
                else:
                    session.receipt_builder.add_precomputed(self._precompute.use_jump(jump))
                session.carry_out(jump.start, jump.end)
                if not was_waiting:
                    leapt[request_id] = padding
                continue
            self.windows.roll_back(request_id)
            if request.num_computed_tokens == jump.end:
                request.num_computed_tokens = jump.start
        pins = self._pins.take()
        self._jumps.clear()
        self._admitted.clear()
        self._precompute.on_freed([block.block_id for block in pins])
        return copies, leapt, pins[::-1] + freed

    def check_integrity(self) -> None:
        """Between steps nothing may be pinned, and no jump may be pending."""
        self._pins.check_integrity()
        self.windows.check_integrity()
        if self._jumps:
            raise IntegrityError(f"jumps: {len(self._jumps)} pending between steps")
