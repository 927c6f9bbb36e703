"""Brings a conversation under what its request and its budget demand, in front of a step of the model.

    adopted state --> clearing edits --> summary (`compact_20260112`) --> budget --> state to render, and the report
                      of the request                                     (`compact` wants a summary, too)

Edits come first, so what they clear counts for the budget no more. Both act on the one `omissions` of the session.
Whatever is taken out stays out in every later turn, and is stored with the session. An eviction that was planned at the
end of an earlier turn, and precomputed, is carried out as it was planned where it still applies.

A summary takes a model's time, and the session may be asked meanwhile. The summary is decided and carried out on the
same state, and the meter is brought back to that state in between. Where no summary can be had nothing is changed, the
request goes on, and the answer says why. It stores nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from acmserve.context.eviction import registry
from acmserve.context.eviction.clearing_edits import COMPACT, Compact, VendorEdit
from acmserve.context.eviction.compact import Compaction, Summary, plan_nothing
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.precompute.planner import kept_plan, ready_plan
from acmserve.context.session.budget import Budget
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.errors import AcmError, Conflict, Unavailable
from acmserve.server.budget.budgets import Budgets, PromptOverhead, steps_json, unmet_json

NOT_WORTH_IT = "what is left to summarize is no longer than a summary"

logger = logging.getLogger(f"vllm.{__name__}")


class ConversationSummarizer(Protocol):
    """Writes summaries of conversations, of at most `max_tokens` tokens."""

    max_tokens: int

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        """Raises InvalidRequest where the text is too long, AcmError where the model cannot be reached.

        `num_tokens` counts the text and the instructions.
        """


@dataclass(frozen=True, slots=True)
class Enforced:
    """The state to render, and what the answer says: of the budget, of the edits (None: there are none).

    `on_served` takes how many tokens the prompt had in truth.
    """

    state: SessionState
    report: dict[str, Any] | None = None
    edited: dict[str, Any] | None = None
    on_served: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Evicted:
    """An eviction that somebody asked for. `summary` is what its model read and wrote, in a dry run at most."""

    plan: EvictionPlan
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class _Summarized:
    """What came of a summary: the state with it and its plan, or the state as it was and the reason."""

    meter: ContextMeter
    state: SessionState
    plan: EvictionPlan | None = None
    summary: Summary | None = None
    reason: str = ""


class Enforcement:
    """For one request of one session, once. `predicts`: whether evictions are planned for later turns of a state."""

    def __init__(
        self,
        budgets: Budgets,
        session: Session,
        beside: PromptOverhead,
        summarizer: ConversationSummarizer,
        can_move: bool,
        predicts: Callable[[SessionState], bool] = lambda state: False,
    ) -> None:
        self._budgets = budgets
        self._session = session
        self._beside = beside
        self._num_beside = 0
        self._summarizer = summarizer
        self._can_move = can_move
        self._predicts = predicts

    async def enforce(self, state: SessionState, edits: Sequence[VendorEdit] | None = None) -> Enforced:
        """Bring `state`, which goes on from the session's own, under the edits of its request and under its budget."""
        budget = self._budgets.of(state)
        if budget is None and edits is None:
            self._budgets.end_scope(self._session)
            return Enforced(state)
        self._num_beside = self._budgets.num_overhead(self._beside)
        meter, state = self._budgets.follow(self._session, state)
        meter.expect(self._num_beside)
        fields: dict[str, Any] = {}
        report: dict[str, Any] | None = None
        if edits is not None:
            meter, state, fields = await self._edit(meter, state, edits)
        if budget is not None:
            meter, state, report = await self._keep_to(budget, meter, state)
        counted = meter.counted()
        edited = None
        if edits is not None:
            edited = fields | {"applied_edits": [*meter.applied(), *fields.get("applied_edits", ())]}
        if report is not None:
            report["tokens"] = counted.num_tokens
        return Enforced(state, report, edited, lambda served: meter.calibrate(counted, served))

    def preview(self, state: SessionState, edits: Sequence[VendorEdit] | None = None) -> tuple[SessionState, int]:
        """The state that would be rendered, and its tokens. A summary is neither written nor guessed."""
        budget = self._budgets.of(state)
        self._num_beside = self._budgets.num_overhead(self._beside)
        meter, state = self._budgets.follow(self._session, state)
        meter.expect(self._num_beside)
        state = state if edits is None else meter.edit(edits, state)
        if budget is not None and not registry.find(budget.policy).needs_model:
            plan = self._due_eviction(budget, meter, state)
            state = state if plan is None else replace(state, omissions=plan.omissions)
            meter = self._budgets.meter_at(self._session, state)
        return state, meter.num_tokens

    async def evict(self, *, dry_run: bool) -> Evicted:
        """Plan an eviction down to the low watermark, whether the budget is exceeded or not.

        A dry run asks no model: it takes the longest summary there may be. Raises `Conflict` where there is no budget,
        or the conversation goes on meanwhile, and what the summarizer raises.
        """
        state = self._session.state
        budget = self._budgets.of(state)
        if budget is None:
            raise Conflict(
                "budget", "this session has none.", "PUT .../budget sets one, --budget one for all sessions."
            )
        meter = self._budgets.meter(self._session)
        if not registry.find(budget.policy).needs_model:
            return Evicted(self._budgets.plan(meter, budget, can_move=self._can_move))
        target = self._budgets.watermark(meter, budget, can_move=False)
        compaction = meter.compaction(target, self._summarizer.max_tokens)
        if compaction is None:
            return Evicted(meter.judge(_nothing(meter, target), budget, NOT_WORTH_IT))
        if dry_run:
            predicted = meter.judge(meter.summarized(compaction, None), budget)
            return Evicted(predicted, Summary("", compaction.num_tokens, self._summarizer.max_tokens))
        summary = await self._ask(meter, compaction, _instructions(budget))
        if self._session.state is not state:
            raise Conflict("budget", "the conversation went on while its summary was written.", "Ask again.")
        meter = self._budgets.meter(self._session)
        plan = meter.summarized(compaction, summary.text)
        reason = _unusable(summary, plan)
        if reason:
            raise Unavailable(reason)
        return Evicted(meter.judge(plan, budget), summary)

    async def _edit(
        self, meter: ContextMeter, state: SessionState, edits: Sequence[VendorEdit]
    ) -> tuple[ContextMeter, SessionState, dict[str, Any]]:
        """Clear, then summarize all but the last step where the trigger of a `Compact` is exceeded."""
        state = meter.edit(edits, state)
        fields: dict[str, Any] = {}
        for edit in edits:
            if isinstance(edit, Compact) and meter.num_tokens > edit.trigger_tokens:
                done = await self._summarize(meter, state, 0, edit.instructions)
                meter, state = done.meter, done.state
                if done.plan is None:
                    fields["unmet"] = f"{COMPACT}: {done.reason}"
                    continue
                applied = {"type": COMPACT, "cleared_input_tokens": done.plan.cleared_input_tokens}
                fields["applied_edits"] = [applied | {"summary": summary_json(done.summary)}]
        return meter, state, fields

    async def _keep_to(
        self, budget: Budget, meter: ContextMeter, state: SessionState
    ) -> tuple[ContextMeter, SessionState, dict[str, Any]]:
        """The state under a budget, and the report."""
        if registry.find(budget.policy).needs_model:
            return await self._compact(budget, meter, state)
        plan = self._due_eviction(budget, meter, state)
        if plan is not None:
            state = meter.carry_out(plan, state)
        return meter, state, _report(budget, plan)

    def _due_eviction(self, budget: Budget, meter: ContextMeter, state: SessionState) -> EvictionPlan | None:
        """What goes in front of this step: what the budget demands, or what is ready and soon would have to."""
        predicts = self._predicts(state)
        if not meter.exceeds(budget):
            return ready_plan(meter, state, budget) if predicts else None
        kept = kept_plan(meter, state, budget) if predicts else None
        return kept or self._budgets.plan(meter, budget, can_move=self._can_move)

    async def _compact(
        self, budget: Budget, meter: ContextMeter, state: SessionState
    ) -> tuple[ContextMeter, SessionState, dict[str, Any]]:
        """The state under a budget whose policy is a summary, and the report."""
        plan, summary = None, None
        if meter.exceeds(budget):
            target = self._budgets.watermark(meter, budget, can_move=False)
            done = await self._summarize(meter, state, target, _instructions(budget))
            meter, state, summary = done.meter, done.state, done.summary
            plan = meter.judge(done.plan or _nothing(meter, target), budget, done.reason)
        return meter, state, _report(budget, plan) | {"summary": summary_json(summary)}

    async def _summarize(self, meter: ContextMeter, state: SessionState, target: int, instructions: str) -> _Summarized:
        """Have the oldest steps summarized. The meter, which another request may have moved on, is at the state."""
        compaction = meter.compaction(target, self._summarizer.max_tokens)
        if compaction is None:
            return _Summarized(meter, state, reason=NOT_WORTH_IT)
        summary, reason = None, ""
        try:
            summary = await self._ask(meter, compaction, instructions)
        except AcmError as error:
            logger.warning("acmserve: session %r goes on without a summary: %s", self._session.session_id, error)
            reason = str(error)
        meter = self._budgets.meter_at(self._session, state)
        meter.expect(self._num_beside)
        if summary is None:
            return _Summarized(meter, state, reason=reason)
        plan = meter.summarized(compaction, summary.text)
        reason = _unusable(summary, plan)
        if reason:
            return _Summarized(meter, state, None, summary, reason)
        return _Summarized(meter, meter.carry_out(plan, state), plan, summary)

    async def _ask(self, meter: ContextMeter, compaction: Compaction, instructions: str) -> Summary:
        num_tokens = compaction.num_tokens + meter.token_counts.count(instructions)
        return await self._summarizer.summarize_conversation(compaction.text, num_tokens, instructions)


def _instructions(budget: Budget) -> str:
    """What the summary is to keep. "" leaves that to the server's own instructions."""
    return str(budget.options.get("instructions", ""))


def _nothing(meter: ContextMeter, target: int) -> EvictionPlan:
    return plan_nothing(meter.view, target)


def _unusable(summary: Summary, plan: EvictionPlan) -> str:
    """Why a summary cannot be used. "" where it can."""
    if not summary.text.strip():
        return "the model wrote an empty summary"
    if plan.num_after >= plan.num_before:
        return "the summary that was written is no shorter than what it would replace"
    return ""


def summary_json(summary: Summary | None) -> dict[str, Any] | None:
    """What a summary cost, as answers say it. None where no model was asked."""
    if summary is None:
        return None
    return {"input_tokens": summary.input_tokens, "output_tokens": summary.output_tokens}


def _report(budget: Budget, plan: EvictionPlan | None) -> dict[str, Any]:
    """What the answer says, `acm.budget`. Tokens are counted before the prompt is made. The receipt has the truth."""
    return {
        "max_tokens": budget.max_tokens,
        "policy": budget.policy,
        "tokens": 0,
        "evicted_tokens": 0 if plan is None else plan.cleared_input_tokens,
        "evicted": [] if plan is None else steps_json(plan.steps),
        "unmet": None if plan is None else unmet_json(plan.unmet),
    }
