"""Carries edit plans out, step by step, around vLLM's own scheduler.

One step, seen from here (`step.py` calls in this order):

    begin_step      before anything is allocated: find and pin the source blocks that may be copied now.
                    A running request that stands at a segment gets its computed position advanced over it,
                    and over those behind the next holes (`leaps/passes.py`)
    on_lookup       a waiting request asks how far behind its prefix hit it may leap
    cap_chunk       a prefill chunk ends exactly where the next segment begins that is not copied in this step
    on_admitted     a waiting request got its blocks
    on_preempted    a request lost its blocks: its plan is armed again
    finish_step     what was scheduled becomes copies, what was not is rolled back, and pins go to vLLM's fence

Source blocks are looked up in `begin_step` only. vLLM registers block hashes when it schedules, before the KV is
computed, so a block found later in the same step may hold nothing yet. They are pinned from there until the step that
copies them is through. They are pinned only when enough free blocks remain for the request itself. Else its tokens are
computed.

It uses the public methods of vLLM's block pool and of `Request`. Private ones are reached through
`engine/vllm/block_pool.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.receipt import Span
from acmserve.engine.requests.request_plan import RequestPlan
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.background_blocks import BackgroundBlocks
from acmserve.engine.scheduling.cache_view import CacheView
from acmserve.engine.scheduling.leaps.passes import fit_pass, spans_of, without_holes
from acmserve.engine.scheduling.leaps.planner import JumpPlanner
from acmserve.engine.scheduling.leaps.runs import FindPath, Jump
from acmserve.engine.scheduling.source_gone import SOURCE_GONE
from acmserve.engine.scheduling.source_pins import SourcePins
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.hooks import HolePass, Padding
from acmserve.engine.vllm.window_tables import WindowTables
from acmserve.engine.worker.copies import StepCopy
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    from acmserve.engine.vllm.lineage_hasher import LineageHasher
    from acmserve.engine.vllm.types import BlockPool, KVCacheBlock, KVCacheManager, Request

NO_ROOM = "kv_cache_full"


class MoveExecutor:
    """The copies of one scheduler's steps."""

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        groups: KVGroups,
        live: LiveRequests,
        precompute: BackgroundBlocks,
        find_path: FindPath = jumping.no_path,
        max_pass_tokens: Callable[[], int] = lambda: 0,
    ) -> None:
        self._manager = kv_cache_manager
        self._pool = kv_cache_manager.block_pool
        self._live = live
        self._precompute = precompute
        self.groups = groups
        self.block_size = groups.hash_block_size
        self.windows = WindowTables(kv_cache_manager, groups)
        self.cache = CacheView(kv_cache_manager, groups, self.windows)
        self.planner = JumpPlanner(self.cache.block, groups, find_path, max_pass_tokens)
        self._jumps: dict[str, Jump] = {}
        self._admitted: set[str] = set()
        self._wanted: dict[str, int] = {}
        self._considered: set[str] = set()
        self._delayed: set[str] = set()
        self._pins = SourcePins(self._pool)
        self._passes: list[HolePass] = []

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def start(self, session: SessionRequest, request: Request, plan: RequestPlan, hasher: LineageHasher | None) -> None:
        """A session request has its plan. `hasher` makes the hashes that follow those of the plan."""
        session.is_planned = True
        session.planned, session.anew, session.choice = plan.segments, plan.anew, plan.choice
        session.states = plan.states
        session.segments, session.marks[:] = list(plan.segments), plan.marks
        session.leaves_out = plan.leaves_out
        session.fallback_reason = session.fallback_reason or plan.fallback_reason
        for segment in plan.gone:
            session.refuse(segment, segment.dst_start, segment.dst_end, SOURCE_GONE)
        if plan.block_hashes is not None and hasher is not None:
            block_pool.set_hasher(request, hasher, plan.block_hashes)

    def remove(self, request_id: str) -> None:
        """The request finished or was aborted."""
        self._wanted.pop(request_id, None)
        self.planner.crowded.discard(request_id)
        self.windows.drop(request_id)

    def withhold(self, request_ids: Iterable[str]) -> None:
        """These requests are kept out of this step: nothing is pinned for them."""
        for request_id in request_ids:
            self._wanted.pop(request_id, None)

    def begin_step(self, running: Sequence[Request], waiting: Iterable[Request] | None) -> None:
        """Pin sources and advance running requests. Call before vLLM's `schedule`.

        `waiting` yields the queued requests in the order in which vLLM will look at them. None where it looks at none:
        nothing is pinned for them then, and those that have asked keep their turn.
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
        if waiting is None:
            return
        # With recurrent groups none: a state is composed with that of the request, once it runs.
        for session, request in () if self.groups.recurrent else self._live.to_prepare(waiting, self._wanted):
            self._prepare_waiting(session, request, self._wanted.get(session.request_id))
        self._wanted.clear()

    def _leap_running(self, session: SessionRequest, request: Request) -> None:
        is_at_hole = session.segment_at(request.num_computed_tokens) is None
        jump = None if self._pins.is_spent else self.planner.plan(session, request, request.num_computed_tokens)
        if self._pins.is_spent or (jump is not None and not self._pins.fits(jump)):
            if not is_at_hole:
                self._delayed.add(session.request_id)
            return
        if jump is not None and jump.needs_own_states:
            jump = jump.begun_at(self.cache.states(session.request_id, jump.start))
        if jump is not None:
            jump = self._pin(session, jump, self.windows.num_copied_blocks(jump.start, jump.end))
        if jump is not None:
            self._jumps[session.request_id] = jump
            self.windows.pad(session.request_id, jump.start, jump.end)
            request.num_computed_tokens = jump.landing

    def _prepare_waiting(self, session: SessionRequest, request: Request, asked_at: int | None) -> None:
        """Plan and pin a jump behind the prefix hit. vLLM counts that hit itself, later in the step.

        `asked_at` is what it counted in the step before. It is less than what is cached where vLLM wants to compute
        the last blocks of every hit.
        """
        if self._pins.is_spent:
            return
        hit = self.cache.prefix(request, asked_at)
        jump = self.planner.plan(session, request, hit.num_tokens)
        if jump is not None and not self._pins.fits(jump):
            return
        self._considered.add(session.request_id)
        if jump is None:
            return
        num_needed = self.cache.count_needed(request, hit)
        pinned = self._pin(session, jump, num_needed + self._manager.watermark_blocks)
        if pinned is not None:
            self._jumps[session.request_id] = pinned
        else:
            self._pins.reserve(num_needed)

    def _pin(self, session: SessionRequest, jump: Jump, num_needed: int) -> Jump | None:
        """What of `jump` is pinned: all, or the runs in front of its first hole where there is no room for more."""
        before_holes = jump if not jump.num_in_holes else without_holes(jump)
        for wanted in (jump, before_holes):
            if wanted is not None and self._pins.pin(wanted, num_needed):
                return wanted
        if before_holes is not None:
            session.fallback_reason = session.fallback_reason or NO_ROOM
        return None

    def on_lookup(self, request_id: str, num_hit: int) -> int | None:
        """Tokens behind the prefix hit of a waiting request that will be copied. None: ask again next step."""
        session = self._live.get(request_id)
        if session is None:
            return 0
        session.num_hit = num_hit
        jump = self._jumps.pop(request_id, None)
        trimmed = jumping.plan_trimmed(jump, num_hit) if jump is not None and jump.stands_at <= num_hit else None
        if trimmed is not None:
            self._jumps[request_id] = trimmed
            self.windows.expect(request_id, trimmed.start, trimmed.end)
            return trimmed.landing - num_hit
        if self.groups.recurrent or session.segment_at(num_hit) is None:
            return 0
        if jump is None and request_id in self._considered:
            return 0
        self._wanted[request_id] = num_hit
        return None

    def cap_chunk(self, request: Request, num_computed: int, num_new: int) -> int:
        """Shorten a prefill chunk `[num_computed, +num_new)` so that it ends where the next segment begins.

        The chunk of a pass has the tokens of its holes, and those behind its last run. A chunk that begins where this
        step's jump was cut for its length computes one token. The next jump follows. A request whose jump has to wait
        for the next step computes none.
        """
        session = self._live.get(request.request_id)
        if session is None:
            return num_new
        if request.request_id in self._delayed:
            return 0
        jump = self._jumps.get(request.request_id)
        jump = jump if jump is not None and jump.landing == num_computed else None
        if jump is not None and 0 < num_new <= jump.num_in_holes:
            if block_pool.is_waiting(request):
                # vLLM has taken its place. It comes again, for its first runs.
                self.planner.crowded.add(request.request_id)
                return 0
            num_computed, jump = self._shorten(request, jump, num_new)
        if jump is None and block_pool.is_waiting(request) and self.planner.restores(session, num_computed + 1):
            # It leaps once it runs, to the state behind its prefix.
            return min(num_new, 1)
        if jump is None:
            # A waiting request that a tier loaded up to here stands where its next jump begins, and leaps when it runs.
            is_loaded = num_computed > 0 and block_pool.is_loaded(request)
            return self.planner.cap_behind(session, request, num_computed, num_new, is_cut=is_loaded)
        num_in_holes = jump.num_in_holes
        return num_in_holes + self.planner.cap_behind(session, request, jump.end, num_new - num_in_holes, is_cut=True)

    def _shorten(self, request: Request, jump: Jump, num_new: int) -> tuple[int, Jump | None]:
        """A running request gets fewer tokens than its holes have: (computed tokens, what is left of its pass)."""
        fitting = fit_pass(jump, num_new)
        if fitting is None:
            del self._jumps[request.request_id]
            request.num_computed_tokens = jump.stands_at
        else:
            self._jumps[request.request_id] = fitting
            request.num_computed_tokens = fitting.landing
        return request.num_computed_tokens, fitting

    def on_admitted(self, request_id: str, precompute: Sequence[Span] = ()) -> None:
        """vLLM allocated blocks for a waiting request. `precompute` is what of its prefix hit was precomputed."""
        session = self._live.get(request_id)
        if session is not None:
            self._admitted.add(request_id)
            self.planner.crowded.discard(request_id)
            session.admit(precompute)

    def on_preempted(self, request: Request) -> int:
        """The request is about to lose its blocks. Call before vLLM resets its counts.

        Returns how many of its tokens have KV: not those that this very step would have copied or computed.
        """
        jump = self._jumps.pop(request.request_id, None)
        self.windows.drop(request.request_id)
        num_computed = jump.stands_at if jump else request.num_computed_tokens
        session = self._live.get(request.request_id)
        if session is not None:
            session.receipt_builder.advance(num_computed)
            session.arm()
        return num_computed

    def finish_step(
        self, scheduled: Mapping[str, int]
    ) -> tuple[list[StepCopy], dict[str, Padding], list[KVCacheBlock]]:
        """Commit or roll back the jumps of this step.

        Returns the copies for the workers, the *running* requests that were advanced, and the blocks that nobody needs
        behind this step. Each request has the null blocks that its tables got. The unneeded ones are pinned, or were
        passed over. The caller hands them to vLLM's fence, last block first, so a source's head outlives its tail.
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
                if jump.num_in_holes:
                    self._passes.append(HolePass(request_id, spans_of(jump, scheduled[request_id])))
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
            if request.num_computed_tokens == jump.landing:
                request.num_computed_tokens = jump.stands_at
        pins = self._pins.take()
        self._jumps.clear()
        self._admitted.clear()
        self._precompute.on_freed([block.block_id for block in pins])
        return copies, leapt, pins[::-1] + freed

    @property
    def has_passes(self) -> bool:
        """Whether a request of this step computes holes between its copies."""
        return bool(self._passes)

    def take_passes(self) -> tuple[HolePass, ...]:
        """The requests of this step that compute holes between their copies."""
        passes, self._passes[:] = tuple(self._passes), ()
        return passes

    def check_integrity(self) -> None:
        """Between steps nothing may be pinned, no jump may be pending, and no pass may wait for the workers."""
        self._pins.check_integrity()
        self.windows.check_integrity()
        if self._jumps or self._passes:
            raise IntegrityError(f"jumps: {len(self._jumps)} and {len(self._passes)} passes pending between steps")
