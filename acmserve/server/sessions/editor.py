"""Changes a session: a tool call of a model, or a batch of edits.

    a model's tool call (server loop)   --.
    POST .../tools/{name}               ----> call_tool --> context.tools.run     --> store.save
    POST .../edits                      ----> edit      --> context.tools.batch   -->
    POST .../prepare                    ----> plan_edits                               nothing is stored

A summary or an embedding takes a model's time. It is made between two runs of a pure function on the same state, under
the session's lock, which the caller holds. Knows no routes and no engine.

A batch gives the event loop back between its edits. It works on a state that nobody sees. Where an answer was recorded
meanwhile, which no lock prevents, it is run again. So the answer stays, and the batch is all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.context.edits.cost import effect_steps, num_saved_by
from acmserve.context.episodes.delimiter import DELIMITER
from acmserve.context.session.rollout.record import Initiator
from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.turn import TurnEdit
from acmserve.context.session.waiting import committed, waiting_behind
from acmserve.context.storage.session import Session
from acmserve.context.tools.batch import BatchOutcome, Edit, EditDone, EditKind, batch_steps
from acmserve.context.tools.run import (
    EmbeddingsWanted,
    SummaryWanted,
    ToolCall,
    ToolContext,
    ToolOutcome,
    parsed_arguments,
    refused,
    run_tool,
    with_input,
)
from acmserve.context.tools.suites import find_operation
from acmserve.errors import Conflict, InvalidRequest
from acmserve.server.budget.budgets import Budgets
from acmserve.server.exchange.events import Event, log
from acmserve.server.models.protocols import Embedder, Summarizer
from acmserve.server.sessions.rollout import operate_rollout
from acmserve.server.sessions.sessions import Sessions
from acmserve.server.sessions.slices import in_slices

MAX_IDS = 32
"""Fragments that the record of one edit names."""


@dataclass(frozen=True, slots=True)
class PlannedEdits:
    """Edits on a copy of a session: its state after them, tokens that the next turn computes, summaries written."""

    state: SessionState
    num_computed: int
    summaries: Mapping[SummaryWanted, str]


class SessionEditor:
    """See the module. `summaries` looks up what was written for a session's preparations.

    `on_redacted` is called after an edit that redacted something.
    """

    def __init__(
        self,
        sessions: Sessions,
        budgets: Budgets,
        summarizer: Summarizer,
        embedder: Embedder,
        *,
        default_fidelity: str,
        summaries: Callable[[Session], Mapping[SummaryWanted, str]],
        on_redacted: Callable[[Session, SessionState], None],
    ) -> None:
        self._sessions = sessions
        self._budgets = budgets
        self._summarizer = summarizer
        self._embedder = embedder
        self._default_fidelity = default_fidelity
        self._summaries = summaries
        self._on_redacted = on_redacted

    async def call_tool(
        self,
        session: Session,
        call: ToolCall,
        suite: str,
        fidelity: str | None,
        by: Initiator = Initiator.CALLER,
        *,
        may_wait: bool = False,
    ) -> ToolOutcome:
        """Carry out one tool call and store the state. The caller holds the lock.

        With `may_wait` a text that is hidden stays in the prompt until somebody commits it.
        """
        context = self._context(suite, fidelity)
        context = replace(context, renderer=self._budgets.renderer(session), may_wait=may_wait)
        if call.name == DELIMITER:
            context = replace(context, scope=self._budgets.scope(session))
        before, outcome = self._attempt(session, call, context)
        if outcome.scope is not None and outcome.error is None:
            self._budgets.declare(session, outcome.scope)
        while (wanted := outcome.needs) is not None:
            try:
                supplied = await self._supply(session, wanted)
            except InvalidRequest as error:
                return ToolOutcome(session.state, refused(error), error=error)
            # An answer may have been recorded meanwhile: it stays, and the call may need something else then.
            before, outcome = self._attempt(session, call, context)
            if outcome.needs == wanted:
                before, outcome = self._attempt(session, call, with_input(context, supplied))
        saved = num_saved_by(before, outcome.state, self._budgets.tokenizer) if outcome.changed else None
        outcome = self._recorded(before, call, outcome, by, saved)
        if may_wait:
            outcome = replace(outcome, state=waiting_behind(session.state, outcome.state))
        if outcome.state is not session.state:
            self._sessions.save(session, outcome.state)
        if outcome.changed:
            log(Event.EDIT, session.session_id, op=call.name, by=by.value)
        if saved is not None:
            kind = find_operation((suite,), call.name) or call.name
            self._sessions.turns.note(session, [TurnEdit(kind, outcome.fragment_ids[:MAX_IDS], saved, by.value)])
        return outcome

    def _attempt(self, session: Session, call: ToolCall, context: ToolContext) -> tuple[SessionState, ToolOutcome]:
        """The state as it is now, and what the call makes of it."""
        before = committed(session.state) if context.may_wait else session.state
        return before, run_tool(before, call, context)

    def _recorded(
        self, before: SessionState, call: ToolCall, outcome: ToolOutcome, by: Initiator, saved: int | None
    ) -> ToolOutcome:
        """The outcome with its place in the rollout record. A call that was refused has none."""
        if outcome.error is not None or before.rollout.header is None:
            return outcome
        state = operate_rollout(outcome.state, by, call.name, parsed_arguments(call.arguments), saved)
        return replace(outcome, state=state)

    async def edit(self, session: Session, batch: Sequence[Edit], fidelity: str | None) -> BatchOutcome:
        """Carry out all edits or none, and store the state. The caller holds the lock. Raises InvalidRequest."""
        outcome = await self._run(
            lambda: session.state, batch, self._context(session.suite, fidelity), dict(self._summaries(session))
        )
        state = outcome.state
        for wanted, done in zip(batch, outcome.done, strict=True):
            arguments = {"fragment_id": done.fragment.fragment_id}
            arguments |= {} if wanted.focus is None else {"focus": wanted.focus}
            saved = done.num_tokens_before - done.num_tokens_after
            state = operate_rollout(state, Initiator.CALLER, done.kind.value, arguments, saved)
        outcome = replace(outcome, state=state)
        before = session.state
        self._sessions.store.save(session, state)
        _log_edits(session, outcome)
        self._sessions.turns.note(session, [_turn_edit(done) for done in outcome.done])
        if any(done.kind is EditKind.REDACT for done in outcome.done):
            self._on_redacted(session, before)
        return outcome

    async def plan_edits(self, session: Session, batch: Sequence[Edit]) -> PlannedEdits:
        """Carry out edits on a copy of the session. Raises what `edit` does, and `Conflict` for a redaction."""
        for index, wanted in enumerate(batch):
            if wanted.kind is EditKind.REDACT:
                raise Conflict(
                    f"edits[{index}].op",
                    "a redaction cannot be prepared: the engine forgets what it computed for the session.",
                    "Redact at once with POST .../edits.",
                )
        before = session.state
        written: dict[SummaryWanted, str] = {}
        outcome = await self._run(lambda: before, batch, self._context(session.suite, "exact"), written)
        tokenizer = self._budgets.tokenizer
        effect = await in_slices(effect_steps(before, outcome.state, "exact", tokenizer))
        return PlannedEdits(outcome.state, effect.cost.num_computed, written)

    async def _run(
        self,
        state_of_now: Callable[[], SessionState],
        batch: Sequence[Edit],
        context: ToolContext,
        written: dict[SummaryWanted, str],
    ) -> BatchOutcome:
        """The outcome of a batch. Summaries come from `written`, which takes those that are made here.

        An answer may be recorded while a summary is written, so the state is looked at anew for each run. It may be
        recorded during a run, too, and then the outcome counts for nothing. Each request under way does so once.
        """
        summaries: dict[tuple[str, str], str] = {}
        while True:
            before = state_of_now()
            outcome = await in_slices(batch_steps(before, batch, context, summaries))
            if (wanted := outcome.needs) is not None:
                if wanted not in written:
                    written[wanted] = await self._summarizer.summarize(wanted)
                summaries[wanted.fragment_id, wanted.focus] = written[wanted]
            elif state_of_now() is before:
                return outcome

    async def _supply(self, session: Session, wanted: SummaryWanted | EmbeddingsWanted) -> Any:
        if isinstance(wanted, SummaryWanted):
            return await self._summarizer.summarize(wanted)
        return await self._embedder.embed(wanted.texts, session.tenant)

    def _context(self, suite: str, fidelity: str | None) -> ToolContext:
        return ToolContext(self._budgets.tokenizer, suite, fidelity or self._default_fidelity)


def _log_edits(session: Session, outcome: BatchOutcome) -> None:
    for done in outcome.done:
        log(
            Event.REDACTION if done.kind is EditKind.REDACT else Event.EDIT,
            session.session_id,
            op=done.kind.value,
            by=Initiator.CALLER.value,
            fragment=done.fragment.fragment_id,
            tokens_before=done.num_tokens_before,
            tokens_after=done.num_tokens_after,
        )


def _turn_edit(done: EditDone) -> TurnEdit:
    saved = done.num_tokens_before - done.num_tokens_after
    return TurnEdit(done.kind.value, (done.fragment.fragment_id,), saved, Initiator.CALLER.value)
