"""Session requests as they arrive: what each asks for, what it forgets, and its plan, now or soon.

    terms     whose session, which fidelity        `engine/requests/admission.py`
    forget    a redaction takes sources and keys   `forgetting.py`
    inputs    all that the plan depends on         `engine/requests/request_plan.py`
    plan      at once, or beside the scheduler     `plan_queue.py`

Knows which plans belong to which live request. Does not know steps: a plan is handed to `MoveExecutor`, which carries
it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from acmserve.engine.config import EngineConfig
from acmserve.engine.requests.adapter_loads import AdapterLoads
from acmserve.engine.requests.admission import SessionTerms, read_terms
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.media_ids import MediaIds
from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.request_plan import FORGOTTEN, PlanInputs, RequestPlan, plan_request
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.requests.source_store import SourceStore
from acmserve.engine.scheduling.background_prefill import BackgroundPrefill
from acmserve.engine.scheduling.forgetting import forget_session
from acmserve.engine.scheduling.key_evictions import KeyEvictions
from acmserve.engine.scheduling.move_executor import MoveExecutor
from acmserve.engine.scheduling.plan_queue import PlanQueue
from acmserve.engine.scheduling.tier.reads import TierReads
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.lineage_hasher import LineageHasher
from acmserve.engine.vllm.model.media_rule import MediaRule
from acmserve.plan.auto import Thresholds
from acmserve.plan.calibration import LEVELS
from acmserve.plan.owner import Owner
from acmserve.plan.rules.rotations import MAX_ROTATIONS

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request
    from acmserve.plan.source import ServedSequence

OTHER_MODEL = "source: the session was served by another model or adapter"
"""`fallback_reason` of a request whose session has KV, and none that its own model or adapter computed."""
NO_PRECOMPUTE = "precompute: not supported for this model"
"""How the `fallback_reason` of a background request begins that is not served."""


class Arrivals:
    """See the module. `plans` are those in the making, `loads` the adapters that requests may run with.
    `reads` bring sources back from a tier below, where there is one.

    `num_lookahead`: see `plan.rules.lookahead`. `thresholds` are those of `auto`, None where it moves nothing.
    """

    lineage_keys = True
    """Negative control of the simulator: without keys moved KV is registered as if it had been computed."""

    def __init__(
        self,
        config: EngineConfig,
        store: SourceStore,
        live: LiveRequests,
        evictions: KeyEvictions,
        move_executor: MoveExecutor,
        background: BackgroundPrefill,
        hash_function: Callable[[Any], bytes],
        num_lookahead: int,
        media: MediaRule,
        thresholds: Thresholds | None,
    ) -> None:
        self.plans = PlanQueue(self._make_plan)
        self.loads = AdapterLoads()
        self._config = config
        self._store = store
        self._live = live
        self._evictions = evictions
        self._moves = move_executor
        self._background = background
        self._hash_function = hash_function
        self._num_lookahead = num_lookahead
        self._media = media
        self._thresholds = thresholds
        self._media_ids = MediaIds()
        self.reads: TierReads | None = None

    def add(
        self,
        request: Request,
        refusal: str | None,
        move_refusal: str | None,
        max_rotations: int = MAX_ROTATIONS,
    ) -> None:
        """Plan a session request. A request without session is not touched.

        `refusal` says why nothing can be reused here at all, `move_refusal` why nothing can be moved. A key that was
        turned `max_rotations` times is computed anew.
        """
        if request.lora_request is not None:
            self.loads.note(request.lora_request)
        terms = read_terms(request, self._config.default_fidelity, self.loads, self._media)
        if terms is None:
            return
        prompt = self._media_ids.encode(request.prompt_token_ids or (), request.mm_features)
        builder = ReceiptBuilder(request.num_prompt_tokens)
        session = SessionRequest(request.request_id, terms.owner, terms.wish.fidelity, builder, prompt)
        session.account, session.unrecorded, session.foldable = terms.account, terms.unrecorded, terms.foldable
        session.draft = terms.draft
        if terms.owner.adapter_key is not None:
            hasher = self._hasher(session)
            block_pool.set_hasher(request, hasher, hasher.extended(request, ()))
        forgotten: tuple[ServedSequence, ...] = ()
        if terms.forget and refusal is None:
            forgotten, session.evictions_ticket = self._forget(request, session)
        refusal = terms.refusal or refusal or (self._refuse_precompute() if terms.precompute else None)
        inputs = self._inputs(request, session, terms, forgotten, (refusal, move_refusal), max_rotations)
        self._live.add(session, request)
        if self.plans.is_long(inputs):
            self.plans.add(terms.account, inputs)
        else:
            self.on_planned(request.request_id, self._make_plan(inputs))
        if terms.precompute:
            self._background.add(session, request, inputs.refusal)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when plans, loads or media are off, between steps."""
        self.plans.check_integrity()
        self.loads.check_integrity()
        self._media_ids.check_integrity()

    def _refuse_precompute(self) -> str | None:
        """Precomputed blocks are counted in the one group that a model has, and all of them are kept there."""
        groups = self._moves.groups
        if groups.is_lone:
            return None
        kind = f"{len(groups.groups)} KV cache groups" if len(groups.groups) > 1 else "a window in every layer"
        return f"{NO_PRECOMPUTE}: {kind}"

    def on_planned(self, request_id: str, plan: RequestPlan) -> None:
        """A session request that is alive has its plan."""
        entry = self._live.entry(request_id)
        assert entry is not None
        session, request = entry
        self._moves.start(session, request, plan, self._hasher(session))
        if self.reads is not None:
            self.reads.add(session)

    def _hasher(self, session: SessionRequest) -> LineageHasher:
        return LineageHasher(self._hash_function, self._moves.block_size, session.marks, session.owner.adapter_key)

    def _inputs(
        self,
        request: Request,
        session: SessionRequest,
        terms: SessionTerms,
        forgotten: tuple[ServedSequence, ...],
        refusals: tuple[str | None, str | None],
        max_rotations: int,
    ) -> PlanInputs:
        refusal, move_refusal = refusals
        num_cached = self._moves.cache.num_cached(request) if refusal is None else 0
        return PlanInputs(
            request=request,
            prompt=session.prompt,
            owner=terms.owner,
            wish=terms.wish,
            sources=self._store.get(terms.owner) if refusal is None else (),
            forgotten=forgotten,
            num_cached=num_cached,
            min_move_tokens=self._config.min_move_tokens,
            has_passes=self._moves.planner.has_passes,
            max_rotations=max_rotations,
            refusal=refusal,
            move_refusal=refusal or move_refusal,
            dropped_reason=self._why_no_sources(terms.owner) if terms.wish.fidelity != "exact" else None,
            block_size=self._moves.block_size,
            hash_function=self._hash_function,
            num_lookahead=self._num_lookahead,
            media_shift_positions=self._media.media_shift_positions,
            states=self._moves.groups.state_rules,
            thresholds=self._thresholds if terms.level is None else LEVELS[terms.level],
        )

    def _why_no_sources(self, owner: Owner) -> str | None:
        """Why the session has no sources any more, or none of the request's own model or adapter."""
        others = () if self._store.has(owner) else self._store.others_of_session(owner)
        return self._store.take_reason(owner) or (OTHER_MODEL if others else None)

    def _make_plan(self, inputs: PlanInputs) -> RequestPlan:
        """Runs in the planning thread, too: reads what nobody changes, and the keys of the prefix cache."""
        return plan_request(inputs, self._moves.cache.has_any, self.lineage_keys)

    def _forget(self, request: Request, session: SessionRequest) -> tuple[tuple[ServedSequence, ...], int]:
        """The forgotten sources, and the ticket of their keys. Plans in the making are made of what goes."""
        for other, _ in self._live.of_session(session.owner):
            if self.plans.cancel(other.request_id):
                self.on_planned(other.request_id, RequestPlan(fallback_reason=FORGOTTEN))
        forgotten, ticket = forget_session(
            session.owner, session.prompt, self._store, self._live, self._evictions, self._moves.block_size
        )
        self._background.forget(session.owner, request.block_hashes)
        return forgotten, ticket
