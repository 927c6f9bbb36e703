"""What one chat request of a session takes in when it begins, and what it leaves behind when it is answered.

    client's history --taken_in--> state --> (model) --record--> state with the answer, and the rollout record

Nothing is lost by a request that fails: the session keeps the state from before. What the client has been answered is
recorded only if nobody changed the conversation meanwhile. It asks no model and knows no stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from acmserve.context.alignment.redacted_text import RedactedText
from acmserve.context.schema.suite_registry import editing_suites
from acmserve.context.session.branches.branch import hide_closed
from acmserve.context.session.carrying.carry_over import cut_out
from acmserve.context.session.carrying.meanwhile import dropped_meanwhile, omissions_at, summary_of
from acmserve.context.session.carrying.redactions import cut_notes
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.going_on import END, go_on
from acmserve.context.session.history import Adoption, adopt, append_answer, end_turn
from acmserve.context.session.rollout.record import RolloutOperation, sample_thread
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session, SessionUse
from acmserve.context.tools.suites import BRANCHES
from acmserve.context.transcript.message import Message
from acmserve.errors import Conflict, InvalidRequest, NotFound
from acmserve.server.budget.budgets import set_budget
from acmserve.server.chat.branches import branch_edits, fail_open
from acmserve.server.chat.calls import find_format_error
from acmserve.server.chat.options import ChatRequest, Turn
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.exchange.sampled import SampledAnswer
from acmserve.server.http.unsaved import storage_fields
from acmserve.server.maps.turn import MapTurn
from acmserve.server.precompute.background_request import RequestFrame, frame_of
from acmserve.server.sessions.rollout import complete_rollout, operate_rollout, thread_of
from acmserve.server.sessions.storage import GONE, refused_fields

OVERTAKEN = Conflict("session_id", "another request of this session came meanwhile.")
_NUMBERS = count(1)


def is_watched(server: ContextServer, session: Session, chat: ChatRequest) -> bool:
    """Whether something may be precomputed behind this turn, or behind that of another session."""
    return server.precompute.in_use or chat.precompute is not None or session.state.precompute is not None


def taken_in(server: ContextServer, state: SessionState, chat: ChatRequest) -> Adoption:
    """The session's state with the history, the budget and the `precompute` of a request, and what it dropped.

    Without its tools a branch cannot go on.
    """
    if chat.observations is not None and state.observation_rule != chat.observations:
        state = replace(state, observation_rule=chat.observations)
    messages, answer = chat.body["messages"], chat.goes_on_from
    rule = server.observations
    adoption = adopt(state, messages, rule) if answer is None else go_on(state, answer, messages, rule)
    adopted = adoption.state
    if state.parent is not None and adoption.num_of_parent < state.parent.num_messages:
        raise InvalidRequest(
            "messages",
            f"begin with {adoption.num_of_parent} of the {state.parent.num_messages} messages that this branch had "
            f"from {state.parent.session_id!a}.",
            "Send the messages of that session as they were when the branch was made, then the branch's own.",
        )
    if adopted.branches and (chat.loop is None or BRANCHES not in chat.loop.suites):
        adopted = fail_open(adopted, "a request without the tools of branches came.", server.tokenizer)
    if chat.precompute is not None and adopted.precompute != chat.precompute:
        adopted = replace(adopted, precompute=chat.precompute)
    return replace(adoption, state=adopted if chat.budget is None else set_budget(adopted, chat.budget))


def keep(server: ContextServer, session: Session, state: SessionState, *, must: bool = False) -> dict[str, Any]:
    """Store the state. What the answer says where it is too large, and the session stays as it is, or is gone.

    Raises `Conflict` or `NotFound` then, where the answer cannot go on without it (`must`).
    """
    before = session.state
    try:
        server.sessions.save(session, state)
    except (Conflict, NotFound) as error:
        if must:
            raise
        return refused_fields(error if isinstance(error, Conflict) else GONE)
    if not server.store.holds(session):
        return refused_fields(GONE)
    if state.branches is not before.branches:
        server.sessions.turns.note(session, branch_edits(before, state, server.tokenizer))
    return {}


def keep_completion(
    turn: Turn, exchange: Exchange | None, message: Message, broken: str | None = None
) -> dict[str, Any]:
    """Put a step of a loop into the rollout record, in front of what it asks for. What the answer says, as of `keep`.

    A record without it stays true: the next prompt is told from another one.
    """
    sampled, suites = None if exchange is None else exchange.sampled, turn.options.suites
    if sampled is None or not turn.rollout:
        return {}
    state = complete_rollout(turn.session.state, sampled, message, suites, format_error=broken)
    return keep(turn.server, turn.session, state)


@dataclass(frozen=True, slots=True)
class TurnRecording:
    """What a request found when it began, and what it leaves behind when it is answered.

    `after` is what was rendered for it: the history taken in, and what the budget demanded taken out. `use` keeps the
    session in memory until the answer is recorded, or the client has left. A request that began later has a higher
    `number`.
    """

    server: ContextServer
    session: Session
    before: SessionState
    after: SessionState
    chat: ChatRequest
    exchange: Exchange
    use: SessionUse
    turn_map: MapTurn | None = None
    number: int = field(default_factory=_NUMBERS.__next__)

    @property
    def num_answers(self) -> int:
        """How many answers the request asks for. The first one is the session's, the others are only recorded."""
        return int(self.chat.request.n or 1)

    def record(self, *messages: Message) -> None:
        """Store the client's history and the answer, the first of `messages`.

        An edit made meanwhile stays, and a summary written before it is dropped, for it may say what was redacted. A
        budget set meanwhile stays, too, and so does each other setting. When another request of the session was
        answered meanwhile, that one wins: the client will send what it made of the two. A client that leaves its
        history here has both of a `conversation`, and of answers behind one id the one that was asked for later. A tool
        loop that runs came later, and its turn stays whole. An answer that continues the client's last message is left
        out. A session deleted meanwhile stays deleted. What is not recorded is told, and so is what this request had
        left out, where it is shown again.
        """
        message = messages[0] if messages else None
        if message is not None and self.chat.found is not None:
            self.chat.found.answered(message)
        if not self.server.store.holds(self.session):
            self.exchange.add_fields(refused_fields(GONE))
            return
        loop = None if self.chat.goes_on_from is None else self.server.sessions.looping.get(self.session.key)
        if loop is not None and self.chat.goes_on_from is END:
            loop.append(partial(self.record, *messages))
            return
        is_kept = self._record(messages) if loop is None else self._left_out(messages, OVERTAKEN)
        if (recorded := self.server.sessions.undoable.get(self.session.key)) is not None:
            recorded.append(partial(self._record, messages))
        if not is_kept:
            return
        chat = self.chat
        if self.turn_map is not None:
            self.server.maps.finished(self.turn_map, self.session)
        elif is_watched(self.server, self.session, chat):
            self.server.precompute.end_turn(self.session, frame_of(chat.body), chat.params.fidelity, chat.edits)

    def _record(self, messages: Sequence[Message]) -> bool:
        """Put the answers into the session as it is now. False where it goes on without the first one."""
        message = messages[0] if messages else None
        if self._is_overtaken and not self._goes_on_anyway:
            return self._left_out(messages, OVERTAKEN)
        state = self.after
        if self.session.state is not self.before:
            try:
                if self.chat.check_current is not None:
                    self.chat.check_current()
                adoption = taken_in(self.server, self.session.state, self._still_asked)
            except NotFound as error:
                return self._left_out(messages, Conflict(error.field, error.message, error.remedy))
            state = self._merged(adoption)
        if message is not None and not self.chat.request.continue_final_message:
            said = {name: value for name, value in message.items() if value is not None}
            state = append_answer(state, said | dict(self.chat.answer_fields))
            if self.session.state.redacted != self.before.redacted:
                state = cut_out(state, [len(state.entries) - 1])
        is_kept = self._save(self._completed(end_turn(state), messages))
        if is_kept:
            self.session.newest_request = max(self.session.newest_request, self.number)
        return is_kept

    @property
    def _still_asked(self) -> ChatRequest:
        """The request without the settings of the session that somebody has changed meanwhile."""
        chat, now, before = self.chat, self.session.state, self.before
        return replace(
            chat,
            budget=chat.budget if now.budget == before.budget else None,
            precompute=chat.precompute if now.precompute == before.precompute else None,
            observations=chat.observations if now.observation_rule == before.observation_rule else None,
        )

    def _left_out(self, messages: Sequence[Message], why: Conflict) -> bool:
        """The session goes on without the answer. Where the client leaves its history here, the answer says so."""
        if self.exchange.sampled is not None:
            self._save(self._completed(self.session.state, messages))
        if self.chat.goes_on_from is not None or self.chat.answer_fields:
            self.exchange.add_fields(refused_fields(why))
        return False

    @property
    def _is_overtaken(self) -> bool:
        """Whether another request of the session was answered meanwhile."""
        return self.session.state.num_turns != self.before.num_turns

    @property
    def _goes_on_anyway(self) -> bool:
        """Whether an answer that was overtaken has its place in the history that the session holds.

        One that stands behind an answer cuts off what came behind that. So a request that began later stays.
        """
        answer = self.chat.goes_on_from
        return answer == END or (answer is not None and self.number >= self.session.newest_request)

    def _merged(self, adoption: Adoption) -> SessionState:
        """The session's state, which was edited meanwhile, with what this request took out and its operations."""
        state = adoption.state
        if self._is_stale:
            state = replace(state, omissions=hide_closed(state.omissions, state.branches))
            lost = (*adoption.dropped, *dropped_meanwhile(self.after, state))
            self.exchange.add_fields(replace(adoption, dropped=lost).fields)
            return state
        self.exchange.add_fields(adoption.fields)
        state = self._begun(cut_notes(replace(state, omissions=omissions_at(self.after, state))))
        for made in self.after.rollout.events[len(self.before.rollout.events) :]:
            if isinstance(made, RolloutOperation):
                state = operate_rollout(state, made.by, made.name, made.arguments, made.saved_tokens)
        return state

    def _begun(self, state: SessionState) -> SessionState:
        """The state with the header that this request began its record with, where it has none."""
        return state if state.rollout.header else replace(state, rollout=self.after.rollout.emptied())

    def _completed(self, state: SessionState, messages: Sequence[Message]) -> SessionState:
        """The state with the completions in its rollout record. A prompt with a text that was redacted stays out."""
        sampled = self.exchange.sampled
        if sampled is None or _redacted(self.session.state) != _redacted(self.before):
            return state
        thread = thread_of(state := self._begun(state))
        for index, message in enumerate(messages):
            broken = self._find_format_error(message, sampled.answer(index))
            named = sample_thread(thread, index)
            state = complete_rollout(state, sampled, message, index=index, thread=named, format_error=broken)
        return state

    def _find_format_error(self, message: Message, answer: SampledAnswer) -> str | None:
        """A tool call of an answer that nobody can read, which `acm` then says. One that was cut short is none."""
        if not self.chat.body.get("tools") or answer.finish_reason == "length":
            return None
        found = find_format_error(answer.text, message, self.server.call_marks)
        if found is not None:
            known, error = self.exchange.fields.get("format_errors", ()), {"step": 0, "error": found}
            # An answer that is recorded anew says it once.
            self.exchange.add_fields({"format_errors": [*(one for one in known if one != error), error]})
        return found

    def _save(self, state: SessionState) -> bool:
        """Store the state. False where it is too large, which the answer then says."""
        if refused := keep(self.server, self.session, state):
            self.exchange.add_fields(refused)
            return False
        if self.session.unsaved is not None:
            self.exchange.add_fields(storage_fields(self.session))
        return True

    @property
    def _is_stale(self) -> bool:
        """Whether an edit or an answer made meanwhile outdates what this request took out."""
        now, before, after = self.session.state.omissions, self.before.omissions, self.after.omissions
        return self._is_overtaken or now != before or summary_of(after) != summary_of(before)


def end_loop(turn: Turn, answer: Message, frame: RequestFrame, *, has_edited: bool) -> None:
    """The answer of a tool loop is recorded. With `has_edited` the next prompt is not the last one with more behind."""
    server, session = turn.server, turn.session
    session.newest_request = next(_NUMBERS)
    if turn.found is not None:
        turn.found.answered(answer)
    if not server.store.holds(session):
        return
    if turn.turn_map is not None:
        server.maps.finished(turn.turn_map, session)
    if turn.is_watched:
        suite = next((name for name in turn.options.suites if name in editing_suites()), None)
        server.precompute.end_turn(session, frame, turn.params.fidelity, turn.edits, suite)
        if has_edited:
            server.precompute.note_edit(session)


def _redacted(state: SessionState) -> tuple[tuple[RedactedText, ...], set[str]]:
    """What was redacted so far. A fragment may be gone with its message, its digests stay."""
    return state.redacted, {f.fragment_id for f in state.fragments if f.visibility is Visibility.REDACTED}
