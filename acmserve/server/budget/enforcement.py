"""Brings a conversation under what its request and its budget demand, in front of a step of the model.

    adopted state --> clearing edits --> summary (`compact_20260112`) --> budget --> state to render, and the report
                      of the request                                     (`compact` wants a summary, too)

Edits come first, so what they clear counts for the budget no more. Both act on the one `omissions` of the session.
Whatever is taken out stays out in every later turn, and is stored with the session. An eviction that was planned at the
end of an earlier turn, and precomputed, is carried out as it was planned where it still applies.

A summary takes a model's time, and the session may be asked meanwhile. The summary is decided and carried out on the
same state, and the meter is brought back to that state in between. Where no summary can be had nothing is changed, the
request goes on, and the answer says why. It stores nothing. How a summary is asked for: see `conversation_summary.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.context.eviction import chain, registry
from acmserve.context.eviction.clearing_edits import COMPACT, Compact, VendorEdit
from acmserve.context.eviction.compact import Compaction, Summary, plan_nothing
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.precompute.planner import kept_plan, ready_plan
from acmserve.context.session.budget import Budget
from acmserve.context.session.render import render_entries
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.errors import AcmError, Conflict, Unavailable
from acmserve.server.budget.budgets import Budgets, PromptOverhead
from acmserve.server.budget.conversation_summary import (
    ConversationSummarizer,
    LivePrompt,
    SummaryAsked,
    ask_for_summary,
    summary_json,
    unusable,
)
from acmserve.server.budget.report import BudgetReport

SLACK_SHARE = 0.02
"""A plan that misses its target by less has reached it. What a template writes differs from the sum of the parts."""
NOT_WORTH_IT = "what is left to summarize is no longer than a summary"

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class Enforced:
    """The state to render, and what the answer says: of the budget, of the edits (None: there are none).

    `on_served` takes how many tokens the prompt had in truth, and settles the report.
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
        live: LivePrompt | None = None,
    ) -> None:
        self._budgets = budgets
        self._session = session
        self._beside = beside
        self._num_beside = 0
        self._fitting = budgets.fitting(session, beside)
        self._summarizer = summarizer
        self._can_move = can_move
        self._predicts = predicts
        self._live = live

    async def enforce(self, state: SessionState, edits: Sequence[VendorEdit] | None = None) -> Enforced:
        """Bring `state`, which goes on from the session's own, under the edits of its request and under its budget."""
        self._budgets.end_scope(self._session)
        budget = self._budgets.of(state)
        if budget is None and edits is None:
            return Enforced(state)
        self._num_beside = self._budgets.num_overhead(self._beside)
        meter, state = self._budgets.follow(self._session, state)
        meter.expect(self._num_beside)
        fields: dict[str, Any] = {}
        report: BudgetReport | None = None
        if edits is not None:
            meter, state, fields = await self._edit(meter, state, edits)
        if budget is not None:
            meter, state, report = await self._keep_to(budget, meter, state)
        counted = meter.counted()
        edited = None
        if edits is not None:
            edited = fields | {"applied_edits": [*meter.applied(), *fields.get("applied_edits", ())]}
        if report is not None:
            report.begin(counted, meter.num_unknown_media)

        def take_served(num_served: int) -> None:
            meter.calibrate(counted, num_served)
            if report is not None:
                report.settle(num_served)

        return Enforced(state, None if report is None else report.fields, edited, take_served)

    def preview(self, state: SessionState, edits: Sequence[VendorEdit] | None = None) -> tuple[SessionState, int]:
        """The state that would be rendered, and its tokens. A summary is neither written nor guessed."""
        budget = self._budgets.of(state)
        self._num_beside = self._budgets.num_overhead(self._beside)
        meter, state = self._budgets.follow(self._session, state)
        meter.expect(self._num_beside)
        state = state if edits is None else meter.edit(edits, state)
        if budget is not None and not registry.find(budget.policy).needs_model:
            plan = self._kept_eviction(budget, meter, state)
            if plan is None and self._fitting.exceeds(meter, state, budget):
                plan = self._planned(budget, meter, state)
            state = state if plan is None else replace(state, omissions=plan.omissions)
            meter = self._budgets.meter_at(self._session, state)
            if plan is not None and plan.unmet is not None and registry.has_last_resorts(budget):
                _, state = self._fitting.take_last_resorts(meter, state, budget, plan)
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
            self._fitting.measure(meter, state)
            return Evicted(self._planned(budget, meter, state))
        target = self._budgets.watermark(meter, budget, can_move=False)
        compaction = meter.compaction(target, self._summarizer.max_tokens)
        if compaction is None:
            return Evicted(meter.judge(_nothing(meter, target), budget, NOT_WORTH_IT))
        if dry_run:
            predicted = meter.judge(meter.summarized(compaction, None), budget)
            return Evicted(predicted, Summary("", compaction.num_tokens, self._summarizer.max_tokens))
        summary = await self._ask(meter, state, compaction, _instructions(budget))
        if self._session.state is not state:
            raise Conflict("budget", "the conversation went on while its summary was written.", "Ask again.")
        meter = self._budgets.meter(self._session)
        plan = meter.summarized(compaction, summary.text)
        reason = unusable(summary, plan)
        if reason:
            raise Unavailable(reason)
        return Evicted(meter.judge(plan, budget), summary)

    async def _edit(
        self, meter: ContextMeter, state: SessionState, edits: Sequence[VendorEdit]
    ) -> tuple[ContextMeter, SessionState, dict[str, Any]]:
        """Clear, then summarize all but the last step where the trigger of a `Compact` is exceeded."""
        cleared = meter.edit(edits, state)
        if cleared is not state:
            self._fitting.measure(meter, cleared)
            state = cleared
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
    ) -> tuple[ContextMeter, SessionState, BudgetReport]:
        """The state under a budget, and the report."""
        if registry.find(budget.policy).needs_model:
            return await self._compact(budget, meter, state)
        kept = self._kept_eviction(budget, meter, state)
        if kept is not None or not self._fitting.exceeds(meter, state, budget):
            state = state if kept is None else self._fitting.carry_out(meter, state, kept)
            return meter, state, BudgetReport(budget, kept)
        plan, before = self._planned(budget, meter, state), state
        state = self._fitting.carry_out(meter, state, plan)
        if not registry.has_last_resorts(budget):
            return meter, state, BudgetReport(budget, plan)
        done = _Summarized(meter, state, reason=chain.REACHED)
        if plan.num_after > plan.target * (1 + SLACK_SHARE):
            done = await self._summarize(meter, state, plan.target, _instructions(budget), before)
        plan = chain.with_stage(plan, chain.COMPACT, done.plan, done.reason)
        if done.plan is not None and self._fitting.measure(done.meter, done.state):
            plan = replace(plan, num_after=done.meter.num_tokens)
        plan, state = self._fitting.take_last_resorts(done.meter, done.state, budget, plan)
        return done.meter, state, BudgetReport(budget, plan, {"summary": summary_json(done.summary)})

    def _kept_eviction(self, budget: Budget, meter: ContextMeter, state: SessionState) -> EvictionPlan | None:
        """The eviction that was planned before, where the budget demands it, or soon will and it is ready."""
        if not self._predicts(state):
            return None
        if not self._fitting.exceeds(meter, state, budget):
            ready = ready_plan(meter, state, budget)
            return None if ready is None else self._fitting.fit(meter, state, budget, ready)
        kept = kept_plan(meter, state, budget)
        if kept is not None:
            kept = self._fitting.fit(meter, state, budget, kept)
        return kept if kept is not None and kept.unmet is None else None

    def _planned(self, budget: Budget, meter: ContextMeter, state: SessionState) -> EvictionPlan:
        """The eviction of the policies that ask no model, down to the low watermark."""
        plan = self._budgets.plan(meter, budget, can_move=self._can_move)

        def plan_again(target: int) -> EvictionPlan:
            return registry.policy_of(budget).plan(meter.view, target)

        return self._fitting.fit(meter, state, budget, plan, plan_again)

    async def _compact(
        self, budget: Budget, meter: ContextMeter, state: SessionState
    ) -> tuple[ContextMeter, SessionState, BudgetReport]:
        """The state under a budget whose policy is a summary, and the report."""
        plan, summary = None, None
        if self._fitting.exceeds(meter, state, budget):
            num_before = meter.num_tokens
            target = self._budgets.watermark(meter, budget, can_move=False)
            done = await self._summarize(meter, state, target, _instructions(budget))
            meter, state, summary = done.meter, done.state, done.summary
            plan = done.plan or _nothing(meter, target)
            if self._fitting.measure(meter, state):
                plan = replace(plan, num_before=num_before, num_after=meter.num_tokens)
            plan = meter.judge(plan, budget, done.reason)
        return meter, state, BudgetReport(budget, plan, {"summary": summary_json(summary)})

    async def _summarize(
        self,
        meter: ContextMeter,
        state: SessionState,
        target: int,
        instructions: str,
        served: SessionState | None = None,
    ) -> _Summarized:
        """Have the oldest steps summarized. The meter, which another request may have moved on, is at the state.

        `served` is the state before this request took anything out of it, where that is another one.
        """
        compaction = meter.compaction(target, self._summarizer.max_tokens)
        if compaction is None:
            return _Summarized(meter, state, reason=NOT_WORTH_IT)
        summary, reason = None, ""
        try:
            summary = await self._ask(meter, served or state, compaction, instructions)
        except AcmError as error:
            logger.warning("acmserve: session %r goes on without a summary: %s", self._session.session_id, error)
            reason = str(error)
        meter = self._budgets.meter_at(self._session, state)
        meter.expect(self._num_beside)
        if summary is None:
            return _Summarized(meter, state, reason=reason)
        plan = meter.summarized(compaction, summary.text)
        reason = unusable(summary, plan)
        if reason:
            return _Summarized(meter, state, None, summary, reason)
        return _Summarized(meter, meter.carry_out(plan, state), plan, summary)

    async def _ask(
        self, meter: ContextMeter, served: SessionState, compaction: Compaction, instructions: str
    ) -> Summary:
        entries = render_entries(served, self._beside.in_front)
        shown = [message for message in entries[: compaction.end] if message is not None]
        asked = SummaryAsked(
            shown,
            meter.before(compaction.end, served.omissions),
            compaction.text,
            compaction.num_tokens,
            instructions,
            meter.token_counts.count(instructions),
        )
        return await ask_for_summary(self._summarizer, asked, self._live, self._budgets.window)


def _instructions(budget: Budget) -> str:
    """What the summary is to keep. "" leaves that to the server's own instructions."""
    return str(budget.options.get("instructions", ""))


def _nothing(meter: ContextMeter, target: int) -> EvictionPlan:
    return plan_nothing(meter.view, target)
