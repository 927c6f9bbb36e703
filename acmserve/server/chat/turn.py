"""One chat request of a session: the client's history is taken in, the session's edits are replayed on it, the answer
is recorded.

    client's messages --adopt--> state --render--> messages with the session's edits --> vLLM's own route --> answer
                                   |                                                                            |
                                   +--- or the tool loop, when the request asks for it ---                 recorded

Clients resend their whole history, so an edit made once has to be replayed at every turn, to the byte: otherwise the
edited prefix would not be found in the cache. A request of a session that was never edited reaches vLLM as it came.
`context_management` of a request edits the session, too: what it clears stays cleared, and its answer carries what was.

Nothing is lost by a request that fails: the session keeps the state from before. What the client has been answered is
recorded only if nobody changed the conversation meanwhile.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from acmserve.context.eviction.clearing_edits import VendorEdit
from acmserve.context.session.branch import hide_closed
from acmserve.context.session.budget import Budget
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.render import render
from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.context.session.state import Author, SessionState
from acmserve.context.storage.session import Session
from acmserve.context.tools.suites import BRANCHES
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import Omissions
from acmserve.errors import InvalidRequest
from acmserve.plan.request import SessionParams
from acmserve.server.budget.budgets import PromptOverhead, set_budget
from acmserve.server.chat.branches import fail_open
from acmserve.server.chat.loop import Turn, run_loop
from acmserve.server.chat.message_builder import MessageBuilder
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.exchange.responses import deliver_field
from acmserve.server.maps.turn import MapTurn, num_tokens_of, placed
from acmserve.server.options.context_management import FIELD
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.options.map_options import MapOptions
from acmserve.server.precompute.background_request import frame_of
from acmserve.server.sessions.sessions import Sessions

Endpoint = Callable[..., Awaitable[Response | None]]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request of a session, validated: `request` is vLLM's object, `body` the JSON that it was read from.

    They share nothing: vLLM changes the messages of its request in place, and those of `body` become the transcript.
    """

    request: ChatCompletionRequest
    raw_request: Request
    body: dict[str, Any]
    params: SessionParams
    tenant: str
    loop: LoopOptions | None
    budget: Budget | None = None
    map: MapOptions | None = None
    edits: tuple[VendorEdit, ...] | None = None
    precompute: PrecomputeOptions | None = None


async def answer_chat(sessions: Sessions, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Answer with vLLM's route function `core(request, raw_request)`. Raises InvalidRequest."""
    is_new = not sessions.store.has(chat.tenant, chat.params.session_id)
    session = sessions.store.open(chat.tenant, chat.params.session_id)
    sessions.precompute.begin_turn(session)
    answer = _answer_once if chat.loop is None else _answer_in_loop
    answered = False
    try:
        with sessions.precompute.serving(session):
            response = await answer(sessions, session, chat, core)
        answered = response is not None and response.status_code == 200
        return response
    finally:
        if is_new and not answered and not session.state.entries and sessions.store.holds(session):
            sessions.store.delete(*session.key)


async def _answer_once(sessions: Sessions, session: Session, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Ask the model once, and record what it answers.

    The session is held until its messages are decided: nobody redacts a text while a summary of it is written.
    """
    async with sessions.locked(session):
        before = session.state
        taken_in = _taken_in(sessions, before, chat)
        turn_map = _begin_map(sessions, session, chat, taken_in)
        beside = PromptOverhead(chat.body.get("tools") or (), num_map_tokens=num_tokens_of(turn_map))
        enforced = await sessions.enforce(session, taken_in, beside, chat.params.fidelity, chat.edits)
    state, recording = enforced.state, _Recording(sessions, session, before, enforced.state, chat, turn_map)
    messages = render(state)
    CURRENT.set(sessions.exchange(session, chat.params, messages, enforced, turn_map))
    request = _edited(chat, state, placed(turn_map, messages))
    response = await core(request=request, raw_request=chat.raw_request)
    if isinstance(response, StreamingResponse):
        response.body_iterator = _recorded(recording, response.body_iterator)
    elif isinstance(response, JSONResponse) and response.status_code == 200:
        choices = json.loads(bytes(response.body))["choices"]
        recording.record(choices[0]["message"] if choices else None)
    return response if enforced.edited is None else deliver_field(response, FIELD, enforced.edited)


def _taken_in(sessions: Sessions, state: SessionState, chat: ChatRequest) -> SessionState:
    """The session's state with the history, the budget and the `precompute` of a request.

    Without its tools a branch cannot go on.
    """
    adoption = adopt(state, chat.body["messages"])
    adopted = adoption.state
    if state.parent is not None and adoption.num_known < state.parent.num_messages:
        raise InvalidRequest(
            "messages",
            f"begin with {adoption.num_known} of the {state.parent.num_messages} messages that this branch had from "
            f"{state.parent.session_id!a}.",
            "Send the messages of that session as they were when the branch was made, then the branch's own.",
        )
    if chat.loop is None or BRANCHES not in chat.loop.suites:
        adopted = fail_open(adopted, "a request without the tools of branches came.", sessions.tokenizer)
    if chat.precompute is not None and adopted.precompute != chat.precompute:
        adopted = replace(adopted, precompute=chat.precompute)
    return adopted if chat.budget is None else set_budget(adopted, chat.budget)


def _begin_map(sessions: Sessions, session: Session, chat: ChatRequest, state: SessionState) -> MapTurn | None:
    """The context map that the request asks for."""
    return sessions.maps.begin(session, chat.map, state, can_move=sessions.can_move(chat.params.fidelity))


def _edited(chat: ChatRequest, state: SessionState, messages: list[Message]) -> ChatCompletionRequest:
    """The request with the messages that the model is to see; the very object where that is what the client sent."""
    as_sent = not state.omissions and all(entry.origin is not Author.INTERNAL for entry in state.entries)
    if as_sent and messages == chat.body["messages"]:
        return chat.request
    return ChatCompletionRequest.model_validate(chat.body | {"messages": copy.deepcopy(messages)})


@dataclass(frozen=True, slots=True)
class _Recording:
    """What a request found when it began, and what it leaves behind when it is answered.

    `after` is what was rendered for it: the history taken in, and what the budget demanded taken out.
    """

    sessions: Sessions
    session: Session
    before: SessionState
    after: SessionState
    chat: ChatRequest
    turn_map: MapTurn | None = None

    def record(self, message: Message | None) -> None:
        """Store the client's history and the answer.

        An edit made meanwhile stays, and a summary written before it is dropped, for it may tell what was redacted.
        When another request of the session was answered meanwhile, that one wins: the client will send what it made of
        the two. A session deleted meanwhile stays deleted. An answer that continues the client's last message is left
        out.
        """
        if not self.sessions.store.holds(self.session):
            return
        if self.session.state.num_turns != self.before.num_turns:
            return
        state = self.after
        if self.session.state is not self.before:
            omissions = self.session.state.omissions if self._is_stale else self.after.omissions
            state = _taken_in(self.sessions, self.session.state, self.chat)
            state = replace(state, omissions=hide_closed(omissions, state.branches))
        if message is not None and not self.chat.request.continue_final_message:
            state = append_answer(state, {name: value for name, value in message.items() if value is not None})
        self.sessions.store.save(self.session, end_turn(state))
        self.sessions.maps.finished(self.turn_map, self.session)
        if self.turn_map is None:
            chat = self.chat
            self.sessions.precompute.end_turn(self.session, frame_of(chat.body), chat.params.fidelity, chat.edits)

    @property
    def _is_stale(self) -> bool:
        """Whether an edit made meanwhile outdates what this request took out."""
        now, before, after = self.session.state.omissions, self.before.omissions, self.after.omissions
        return now != before or _summary(after) != _summary(before)


def _summary(omissions: Omissions) -> str:
    return "" if omissions.summarized is None else omissions.entries[omissions.summarized].summary


async def _recorded(recording: _Recording, events: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """Pass a stream on; its message is recorded before the client hears that it has ended."""
    builder = MessageBuilder()
    async for event in events:
        _, mark, data = event.partition("data: ")
        if mark and data.startswith("{") and builder.finish_reason is None:
            builder.add(json.loads(data))
            if builder.finish_reason is not None:
                recording.record(builder.message())
        yield event


async def _answer_in_loop(sessions: Sessions, session: Session, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Hold the session for the whole turn, which a stream ends only when it has been read.

    The loop puts the receipts of its steps into the answer itself, so no exchange is left for the route to deliver.
    """
    assert chat.loop is not None
    async with AsyncExitStack() as held:
        held.enter_context(sessions.precompute.serving(session))
        await held.enter_async_context(sessions.locked(session))
        before = session.state
        sessions.budgets.know(session)
        sessions.store.save(session, _taken_in(sessions, before, chat))
        try:
            turn_map = _begin_map(sessions, session, chat, session.state)
            turn = Turn(sessions, session, chat.loop, chat.params, turn_map, chat.edits)
            response = await run_loop(turn, core, chat.raw_request, chat.body)
        except Exception:
            sessions.store.save(session, before)
            raise
        if isinstance(response, StreamingResponse):
            response.body_iterator = _holding(held.pop_all(), response.body_iterator)
        elif response is None or response.status_code != 200:
            sessions.store.save(session, before)
        CURRENT.set(None)
        return response


async def _holding(held: AsyncExitStack, events: Any) -> AsyncGenerator[str, None]:
    async with held, aclosing(events):
        async for event in events:
            yield event
