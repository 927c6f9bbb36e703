"""One chat request of a session: the client's history is taken in, the session's edits are replayed on it, the answer
is recorded.

    client's messages --adopt--> state --render--> messages with the session's edits --> vLLM's own route --> answer
                                   |                                                                            |
                                   +--- or the tool loop, when the request asks for it ---                 recorded

Clients resend their whole history, so an edit made once has to be replayed at every turn, to the byte. Otherwise the
edited prefix would not be found in the cache. A request of a session that was never edited reaches vLLM as it came.
`context_management` of a request edits the session, too: what it clears stays cleared, and its answer carries what was.

Nothing is lost by a request that fails: the session keeps the state from before. What the client has been answered is
recorded only if nobody changed the conversation meanwhile. An answer that cannot be stored is delivered, and says so.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.context.session.branches.branch import hide_closed
from acmserve.context.session.going_on import go_on
from acmserve.context.session.history import Adoption, adopt, append_answer, end_turn
from acmserve.context.session.render import render
from acmserve.context.session.state import Author, SessionState
from acmserve.context.storage.session import Session, SessionUse
from acmserve.context.tools.suites import BRANCHES
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, Omissions
from acmserve.errors import Conflict, InvalidRequest
from acmserve.server.budget.budgets import PromptOverhead, set_budget
from acmserve.server.chat.branches import fail_open
from acmserve.server.chat.live_prompt import live_prompt
from acmserve.server.chat.loop import Turn, run_loop
from acmserve.server.chat.message_builder import MessageBuilder
from acmserve.server.chat.options import ChatRequest, SessionCall, with_options
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT, Exchange, deliver, deliver_field
from acmserve.server.maps.turn import MapTurn, placed, placing
from acmserve.server.options.context_management import FIELD
from acmserve.server.precompute.background_request import frame_of
from acmserve.server.sessions.storage import refused_fields, storage_fields
from acmserve.server.vllm.handlers import ChatCompletionRequest

Endpoint = Callable[..., Awaitable[Response | None]]


async def answer_chat_call(server: ContextServer, call: SessionCall, core: Endpoint) -> Response | None:
    """Answer a request of /v1/chat/completions."""
    chat = ChatRequest(call.request, call.raw_request, call.body, call.params, call.tenant, found=call.found)
    return await answer_session(server, chat, core)


async def answer_session(server: ContextServer, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Answer a chat of a session, whatever route it came by, with its receipt. Raises InvalidRequest, StorageFailed."""
    response = await answer_chat(server, with_options(server, chat), core)
    exchange = CURRENT.get()
    return response if exchange is None else deliver(response, exchange)


async def answer_chat(server: ContextServer, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Answer with vLLM's route function `core(request, raw_request)`. Raises InvalidRequest."""
    is_new = not server.store.has(chat.tenant, chat.params.session_id)
    session = server.store.open(chat.tenant, chat.params.session_id)
    answer = _answer_once if chat.loop is None else _answer_in_loop
    is_watched = _is_watched(server, session, chat)
    answered = False
    try:
        if is_watched:
            server.precompute.begin_turn(session)
        with server.precompute.serving(session) if is_watched else nullcontext():
            response = await answer(server, session, chat, core)
        answered = response is not None and response.status_code == 200
        return response
    finally:
        if is_new and not answered and not session.state.entries:
            server.store.discard(session)


def _is_watched(server: ContextServer, session: Session, chat: ChatRequest) -> bool:
    """Whether something may be precomputed behind this turn, or behind that of another session."""
    return server.precompute.in_use or chat.precompute is not None or session.state.precompute is not None


async def _answer_once(server: ContextServer, session: Session, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Ask the model once, and record what it answers.

    The session is held until its messages are decided: nobody redacts a text while a summary of it is written.
    """
    use = server.store.use(session)
    async with server.sessions.locked(session):
        before = session.state
        adoption = taken_in(server, before, chat)
        state = adoption.state
        turn_map = _begin_map(server, session, chat, state)
        enforced = None
        if _must_enforce(server, session, chat, state):
            num_map_tokens = 0 if turn_map is None else turn_map.num_tokens
            renderer = server.renderer(chat.body, placing(turn_map, state))
            overhead = PromptOverhead(chat.body.get("tools") or (), num_map_tokens=num_map_tokens, renderer=renderer)
            live = live_prompt(server.sessions, session, chat.params, frame_of(chat.body), turn_map, state)
            enforced = await server.enforce(session, state, overhead, chat.params.fidelity, chat.edits, live)
            state = enforced.state
    messages = render(state, server.rules)
    exchange = server.sessions.exchange(session, chat.params, messages, enforced, turn_map)
    if chat.found is not None:
        exchange.add_fields(chat.found.fields)
    exchange.add_fields(adoption.fields)
    CURRENT.set(exchange)
    recording = _Recording(server, session, before, state, chat, exchange, use, turn_map)
    request = _edited(chat, state, messages if turn_map is None else placed(turn_map, messages, state))
    response = await core(request=request, raw_request=chat.raw_request)
    if isinstance(response, StreamingResponse):
        response.body_iterator = _recorded(recording, response.body_iterator)
    elif isinstance(response, JSONResponse) and response.status_code == 200:
        choices = json.loads(bytes(response.body))["choices"]
        recording.record(choices[0]["message"] if choices else None)
    if enforced is None or enforced.edited is None:
        return response
    return deliver_field(response, FIELD, enforced.edited)


def _must_enforce(server: ContextServer, session: Session, chat: ChatRequest, state: SessionState) -> bool:
    """Whether edits of the request or a budget hold, or a tool has declared a scope that ends now."""
    has_budget = state.budget is not None or server.budgets.default is not None
    return has_budget or chat.edits is not None or session.key in server.budgets.scoped


def taken_in(server: ContextServer, state: SessionState, chat: ChatRequest) -> Adoption:
    """The session's state with the history, the budget and the `precompute` of a request, and what it dropped.

    Without its tools a branch cannot go on.
    """
    if chat.observations is not None and state.observation_rule != chat.observations:
        state = replace(state, observation_rule=chat.observations)
    messages, answer = chat.body["messages"], chat.goes_on_from
    adoption = adopt(state, messages, server.observations) if answer is None else go_on(state, answer, messages)
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


def _begin_map(server: ContextServer, session: Session, chat: ChatRequest, state: SessionState) -> MapTurn | None:
    """The context map that the request asks for. Where it asks for none, the session ends to read one."""
    if chat.map is None and session.key not in server.maps.reads:
        return None
    can_move = server.sessions.can_move(chat.params.fidelity)
    return server.maps.begin(session, chat.map, state, can_move=can_move, query_finished=chat.query_finished)


def _edited(chat: ChatRequest, state: SessionState, messages: list[Message]) -> ChatCompletionRequest:
    """The request with the messages that the model is to see. The very object where that is what the client sent."""
    as_sent = state.omissions == EMPTY and all(entry.origin is not Author.INTERNAL for entry in state.entries)
    if as_sent and messages == chat.body["messages"]:
        return chat.request
    return ChatCompletionRequest.model_validate(chat.body | {"messages": copy.deepcopy(messages)})


@dataclass(frozen=True, slots=True)
class _Recording:
    """What a request found when it began, and what it leaves behind when it is answered.

    `after` is what was rendered for it: the history taken in, and what the budget demanded taken out. `use` keeps the
    session in memory until the answer is recorded, or the client has left.
    """

    server: ContextServer
    session: Session
    before: SessionState
    after: SessionState
    chat: ChatRequest
    exchange: Exchange
    use: SessionUse
    turn_map: MapTurn | None = None

    def record(self, message: Message | None) -> None:
        """Store the client's history and the answer.

        An edit made meanwhile stays, and a summary written before it is dropped, for it may say what was redacted. When
        another request of the session was answered meanwhile, that one wins: the client will send what it made of the
        two. A session deleted meanwhile stays deleted. An answer that continues the client's last message is left out.
        An answer that is too large to be recorded, or that the file does not take, is delivered with that warning.
        """
        if message is not None and self.chat.found is not None:
            self.chat.found.answered(message)
        if not self.server.store.holds(self.session):
            return
        if self.session.state.num_turns != self.before.num_turns:
            return
        state = self.after
        if self.session.state is not self.before:
            omissions = self.session.state.omissions if self._is_stale else self.after.omissions
            adoption = taken_in(self.server, self.session.state, self.chat)
            self.exchange.add_fields(adoption.fields)
            state = replace(adoption.state, omissions=hide_closed(omissions, adoption.state.branches))
        if message is not None and not self.chat.request.continue_final_message:
            said = {name: value for name, value in message.items() if value is not None}
            state = append_answer(state, said | dict(self.chat.answer_fields))
        try:
            self.server.store.save(self.session, end_turn(state))
        except Conflict as error:
            self.exchange.add_fields(refused_fields(error))
            return
        if self.session.unsaved is not None:
            self.exchange.add_fields(storage_fields(self.session))
        chat = self.chat
        if self.turn_map is not None:
            self.server.maps.finished(self.turn_map, self.session)
        elif _is_watched(self.server, self.session, chat):
            self.server.precompute.end_turn(self.session, frame_of(chat.body), chat.params.fidelity, chat.edits)

    @property
    def _is_stale(self) -> bool:
        """Whether an edit made meanwhile outdates what this request took out."""
        now, before, after = self.session.state.omissions, self.before.omissions, self.after.omissions
        return now != before or _summary(after) != _summary(before)


def _summary(omissions: Omissions) -> str:
    return "" if omissions.summarized is None else omissions.entries[omissions.summarized].summary


async def _recorded(recording: _Recording, events: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """Pass a stream on. Its message is recorded before the client hears that it has ended."""
    builder = MessageBuilder()
    async for event in events:
        _, mark, data = event.partition("data: ")
        if mark and data.startswith("{") and builder.finish_reason is None:
            builder.add(json.loads(data))
            if builder.finish_reason is not None:
                recording.record(builder.message())
        yield event


async def _answer_in_loop(
    server: ContextServer, session: Session, chat: ChatRequest, core: Endpoint
) -> Response | None:
    """Hold the session for the whole turn, which a stream ends only when it has been read.

    The loop puts the receipts of its steps into the answer itself, so no exchange is left for the route to deliver.
    """
    assert chat.loop is not None
    async with AsyncExitStack() as held:
        is_watched = _is_watched(server, session, chat)
        if is_watched:
            held.enter_context(server.precompute.serving(session))
        await held.enter_async_context(server.sessions.locked(session))
        before = session.state
        server.budgets.know(session)
        adoption = taken_in(server, before, chat)
        server.store.save(session, adoption.state)
        try:
            turn_map = _begin_map(server, session, chat, session.state)
            turn = Turn(
                server,
                session,
                chat.loop,
                chat.params,
                turn_map,
                chat.edits,
                is_watched=is_watched and turn_map is None,
                found=chat.found,
                dropped=adoption.fields,
                answer_fields=chat.answer_fields,
            )
            response = await run_loop(turn, core, chat.raw_request, chat.body)
        except Exception:
            server.store.save(session, before)
            raise
        if isinstance(response, StreamingResponse):
            response.body_iterator = _holding(held.pop_all(), response.body_iterator)
        elif response is None or response.status_code != 200:
            server.store.save(session, before)
        CURRENT.set(None)
        return response


async def _holding(held: AsyncExitStack, events: Any) -> AsyncGenerator[str, None]:
    async with held, aclosing(events):
        async for event in events:
            yield event
