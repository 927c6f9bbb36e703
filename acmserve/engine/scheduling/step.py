"""One scheduler's steps: what vLLM's side calls (`StepHooks`), handed to plans, moves and background requests.

Knows the order in which these are asked, and which requests stand aside. Does not know vLLM's scheduler:
`engine/vllm/scheduler.py` calls this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from acmserve.engine.requests.draft_pace import DraftPace
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.request_plan import RequestPlan
from acmserve.engine.scheduling.background_prefill import BackgroundPrefill
from acmserve.engine.scheduling.edit_boundaries import EditBoundaryKeeper
from acmserve.engine.scheduling.key_evictions import KeyEvictions
from acmserve.engine.scheduling.leaps.answer_states import AnswerStates
from acmserve.engine.scheduling.move_executor import MoveExecutor
from acmserve.engine.scheduling.plan_queue import PlanQueue
from acmserve.engine.scheduling.tier.reads import TierReads
from acmserve.engine.scheduling.transition_keeper import TransitionKeeper
from acmserve.engine.vllm.hooks import StepOutcome
from acmserve.engine.worker.copies import StepCopy

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request


class SchedulerStep:
    """See the module. `on_planned` takes the plans made beside the scheduler, `add_copies` the copies of a step.
    `on_cache_reset` is called when the prefix cache was reset. `reads` bring sources back from a tier below. `pace`
    shortens chunks beside a draft."""

    def __init__(
        self,
        live: LiveRequests,
        plans: PlanQueue,
        evictions: KeyEvictions,
        moves: MoveExecutor,
        background: BackgroundPrefill,
        boundaries: EditBoundaryKeeper,
        answers: AnswerStates,
        transitions: TransitionKeeper,
        on_planned: Callable[[str, RequestPlan], None],
        add_copies: Callable[[list[StepCopy]], None],
        on_cache_reset: Callable[[], object],
        pace: DraftPace,
    ) -> None:
        self._live = live
        self._plans = plans
        self._evictions = evictions
        self._moves = moves
        self._background = background
        self._boundaries = boundaries
        self._answers = answers
        self._transitions = transitions
        self._on_planned = on_planned
        self._add_copies = add_copies
        self._on_cache_reset = on_cache_reset
        self.reads: TierReads | None = None
        self._pace = pace
        # Handed on as they are: each frame is a share of every step, also of those without sessions.
        self.take_left = background.take_left
        self.on_processed = background.on_processed

    @property
    def is_idle(self) -> bool:
        """No session request or read is alive, no key waits to go, and no precomputed block for its place."""
        return not (self._live or self._evictions or self._background.blocks.num_free or self.reads)

    def is_aside(self, request_id: str) -> bool:
        """Whether a request waits for its plan, for the keys of its redaction, or for its sources."""
        session = self._live.get(request_id)
        if session is None:
            return self.reads is not None and self.reads.is_over(request_id)
        if not (session.is_planned and self._evictions.is_done(session.evictions_ticket)):
            return True
        return self.reads is not None and self.reads.is_awaited_by(request_id)

    def begin_reads(self, waiting: Iterable[Request]) -> tuple[Sequence[str], Sequence[Request]]:
        """Requests of ours to finish before this step, and to add."""
        return ((), ()) if self.reads is None else self.reads.begin(waiting)

    def is_through(self, request_id: str) -> bool:
        """Whether a waiting request that vLLM may go on with has all that it is for."""
        return self.reads is not None and self.reads.on_ready(request_id)

    @property
    def num_background(self) -> int:
        """Background requests alive."""
        return self._background.num_alive

    def to_preempt(self, num_others: int) -> Sequence[Request]:
        """Running background requests that give way."""
        return self._background.to_preempt(num_others)

    def to_hold(self, num_others: int) -> Sequence[Request]:
        """Waiting background requests that this step must not see. Nothing is pinned for them."""
        held = self._background.to_hold(num_others)
        self._moves.withhold(request.request_id for request in held)
        return held

    def begin_step(self, running: Sequence[Request], waiting: Iterable[Request] | None, num_held: int) -> bool:
        """Take the plans that are ready and the keys that are to go. Place what was freed, then prepare moves where
        anybody but the held requests is alive. Returns whether chunks may have to be capped in this step.
        `waiting` is None where none of them can be admitted."""
        if self._plans:
            for request_id, plan in self._plans.take_done():
                self._on_planned(request_id, plan)
        self._evictions.begin_step()
        self._background.blocks.place()
        if len(self._live) <= num_held:
            return False
        reads = self.reads
        if reads is not None and waiting is not None:
            # A source that is on its way back is not there yet, and a request whose source is gone does without.
            waiting = (request for request in waiting if not reads.is_awaited_by(request.request_id))
        self._moves.begin_step(running, waiting)
        self._boundaries.begin_step()
        return bool(self._background.num_alive) or self._live.has_prefill()

    def cap_chunk(self, request: Request, num_computed: int, num_new: int, num_behind: int) -> int:
        """The chunk, shortened for a background request, a draft, the next move, and for what later edits need."""
        num_new = self._background.cap_chunk(request, num_computed, num_new, num_behind)
        num_new = self._pace.cap_chunk(request, num_computed, num_new)
        num_new = self._moves.cap_chunk(request, num_computed, num_new)
        return self._boundaries.cap_chunk(request.request_id, num_computed, num_new)

    def on_preempted(self, request: Request) -> Sequence[int]:
        """Arm the plan of a preempted request again. Returns how many of its blocks hold KV, by group."""
        num_computed = self._moves.on_preempted(request)
        self._transitions.drop(request.request_id)
        session = self._live.get(request.request_id)
        if self.reads is not None and session is not None:
            self.reads.add(session)
        return [num_computed // group.block_size for group in self._moves.groups.groups]

    def on_freed(self, block_ids: Sequence[int]) -> None:
        """Blocks are about to be freed: those precomputed wait for their place."""
        self._background.blocks.on_freed(block_ids)

    def finish_step(self, num_scheduled: Mapping[str, int], is_paused: bool) -> StepOutcome:
        """Commit or roll back the moves of this step. The copies go to the workers."""
        copies, leapt, pins = self._moves.finish_step(num_scheduled)
        copies += self._answers.finish_step(num_scheduled, leapt)
        self._add_copies(copies)
        self._background.finish_step(num_scheduled, is_paused)
        records = self._transitions.finish_step(num_scheduled)
        return StepOutcome(leapt, pins + self._answers.take_held(), bool(copies or records))

    def answer(self, request_id: str) -> dict[str, Any] | None:
        """The receipt so far of a session request."""
        session = self._live.get(request_id)
        return None if session is None else session.answer()

    def take_ended(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Background requests that go no further. Their receipts are about the part that is ready."""
        if self._background.num_alive:
            for session in self._background.take_ended():
                yield session.request_id, session.answer()

    def on_cache_reset(self) -> None:
        """The cache's KV has lost its names."""
        self._on_cache_reset()
