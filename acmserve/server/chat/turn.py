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
A request whose session was deleted or replaced while it waited raises `SessionLeft`. Its session is found anew then.
So it is where a text was redacted while a summary of it was written.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, aclosing, nullcontext
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.context.session.render import render
from acmserve.context.session.state import Author, SessionState
from acmserve.context.session.turns.turn import TurnOrigin
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY
from acmserve.server.chat.live_prompt import live_prompt
from acmserve.server.chat.loop import Turn, run_loop
from acmserve.server.chat.message_builder import GroupBuilder
from acmserve.server.chat.options import ASKING, ChatRequest, SessionCall, fitting_record, with_options
from acmserve.server.chat.recording import TurnRecording, is_watched, taken_in
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.delivery import deliver, deliver_field
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.exchange.sampled import SampledAnswers
from acmserve.server.maps.turn import MapTurn, beside_of, placed, placing
from acmserve.server.options.context_management import FIELD
from acmserve.server.precompute.background_request import frame_of
from acmserve.server.sessions.loops import looping, undoable
from acmserve.server.sessions.rollout import begin_rollout, enforce_rollout
from acmserve.server.vllm.handlers import ChatCompletionRequest

Endpoint = Callable[..., Awaitable[Response | None]]
Begin = Callable[[], object]
"""Called when the session is held: from here on its request is worked on, and before it waited for others."""
Working = Callable[[], AbstractContextManager[None]]
"""The time in which a request is worked on."""


async def answer_chat_call(server: ContextServer, call: SessionCall, core: Endpoint) -> Response | None:
    """Answer a request of /v1/chat/completions."""
    found = call.found
    origin = TurnOrigin(call.raw_request.url.path)
    named = (found.params, found.tenant)
    chat = ChatRequest(call.request, call.raw_request, call.body, *named, found=found, origin=origin)
    return await answer_session(server, chat, core)


async def answer_session(server: ContextServer, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Answer a chat of a session, whatever route it came by, with its receipt. Raises InvalidRequest, StorageFailed."""
    if server.rollout or chat.params.precompute or any(chat.body.get(name) is not None for name in ASKING):
        chat = with_options(server, chat)
    response = await answer_chat(server, chat, core)
    exchange = CURRENT.get()
    return response if exchange is None else deliver(response, exchange)


async def answer_chat(server: ContextServer, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Answer with vLLM's route function `core(request, raw_request)`. Raises InvalidRequest."""
    if chat.map is not None and chat.map.wait:
        await server.maps.updates.done((chat.tenant, chat.map.external_context_id))
    making = None if chat.map is None else server.maps.expect(chat.tenant, chat.map)
    is_new = not server.store.has(chat.tenant, chat.params.session_id)
    session = server.store.open(chat.tenant, chat.params.session_id)
    answer = _answer_once if chat.loop is None else _answer_in_loop
    watched = is_watched(server, session, chat)
    answered = False
    if server.events.is_heard:
        server.events.publish(session.key, "turn_started")
    unshared = server.sessions.unshared
    if is_new or session in unshared:
        unshared.setdefault(session, []).append(session.state)
    try:
        chat = fitting_record(chat, session.state) if chat.rollout else chat
        if watched:
            server.precompute.begin_turn(session)
        work = server.precompute.serving(session) if watched else nullcontext()
        with ExitStack() as worked:
            response = await answer(server, session, chat, core, partial(worked.enter_context, work))
        answered = response is not None and response.status_code == 200
        return response
    finally:
        if not answered and server.events.is_heard:
            server.events.publish(session.key, "turn_failed")
        if making is not None:
            server.maps.leave(session, making, answered=answered)
        if session in unshared:
            _leave_new(server, session, answered=answered)


def _leave_new(server: ContextServer, session: Session, *, answered: bool) -> None:
    """A request ends in a session that was new when it began. The last that fails takes it back, if nobody set it."""
    unshared = server.sessions.unshared
    states = unshared[session]
    opened = states[0]
    states.pop()
    if answered or not states:
        del unshared[session]
    if not answered and not states and session.state is opened:
        server.store.discard(session)


async def _answer_once(
    server: ContextServer, session: Session, chat: ChatRequest, core: Endpoint, begin: Begin
) -> Response | None:
    """Ask the model once, and record what it answers.

    The session is held until its messages are decided: nobody redacts a text while a summary of it is written.
    """
    use = server.store.use(session)
    async with server.sessions.held(session):
        if chat.check_current is not None:
            chat.check_current()
        begin()
        before = session.state
        adoption = taken_in(server, before, chat)
        state = _begun(adoption.state, chat)
        turn_map = _begin_map(server, session, chat, state)
        enforced = None
        if _must_enforce(server, session, chat, state):
            renderer = server.renderer(chat.body, placing(turn_map))
            overhead = beside_of(turn_map, chat.body.get("tools") or (), renderer)
            live = live_prompt(server.sessions, session, chat.params, frame_of(chat.body), turn_map, chat.origin)
            enforced = await server.enforce(session, state, overhead, chat.params.fidelity, chat.edits, live)
            state = enforce_rollout(state, enforced)
    messages = render(state, server.rules)
    exchange = server.sessions.exchange(session, chat.params, messages, enforced, turn_map, chat.origin)
    exchange.sampled = SampledAnswers() if chat.rollout else None
    if chat.found is not None:
        exchange.add_fields(chat.found.fields)
    exchange.add_fields(adoption.fields)
    CURRENT.set(exchange)
    recording = TurnRecording(server, session, before, state, chat, exchange, use, turn_map)
    shown = messages if turn_map is None else placed(turn_map, messages, state, server.rules)
    request = _edited(chat, state, shown)
    response = await core(request=request, raw_request=chat.raw_request)
    if isinstance(response, StreamingResponse):
        response.body_iterator = _recorded(recording, response.body_iterator)
    elif isinstance(response, JSONResponse) and response.status_code == 200:
        choices = json.loads(bytes(response.body))["choices"]
        recording.record(*(choice["message"] for choice in choices))
    if enforced is None or enforced.edited is None:
        return response
    return deliver_field(response, FIELD, enforced.edited)


def _must_enforce(server: ContextServer, session: Session, chat: ChatRequest, state: SessionState) -> bool:
    """Whether edits of the request or a budget hold, or a tool has declared a scope that ends now."""
    has_budget = state.budget is not None or server.budgets.default is not None
    return has_budget or chat.edits is not None or session.key in server.budgets.scoped


def _begun(state: SessionState, chat: ChatRequest) -> SessionState:
    """The state with a rollout record, where the request asks for one. Raises `Conflict`."""
    return begin_rollout(state, chat.request.model or "", chat.suites) if chat.rollout else state


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


async def _recorded(recording: TurnRecording, events: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """Pass a stream on. Its message is recorded before the client hears that it has ended."""
    group = GroupBuilder(recording.num_answers)
    async for event in events:
        _, mark, data = event.partition("data: ")
        if mark and data.startswith("{") and not group.is_over:
            group.add(json.loads(data))
            if group.is_over:
                recording.record(*group.messages())
        yield event


async def _answer_in_loop(
    server: ContextServer, session: Session, chat: ChatRequest, core: Endpoint, begin: Begin
) -> Response | None:
    """Hold the session for the whole turn, which a stream ends only when it has been read.

    The loop puts the receipts of its steps into the answer itself, so no exchange is left for the route to deliver.
    """
    assert chat.loop is not None
    async with AsyncExitStack() as held:
        watched = is_watched(server, session, chat)
        await held.enter_async_context(server.sessions.held(session))
        if chat.check_current is not None:
            chat.check_current()
        held.enter_context(looping(server.sessions, session))
        begin()
        before = session.state
        server.budgets.know(session)
        adoption = taken_in(server, before, chat)
        server.store.save(session, _begun(adoption.state, chat))
        with undoable(server.sessions, session, before) as undo:
            turn_map = _begin_map(server, session, chat, session.state)
            turn = Turn(
                server,
                session,
                chat.loop,
                chat.params,
                turn_map,
                chat.edits,
                is_watched=watched and turn_map is None,
                found=chat.found,
                dropped=adoption.fields,
                answer_fields=chat.answer_fields,
                rollout=chat.rollout,
            )
            response = await run_loop(turn, core, chat.raw_request, chat.body)
            if not isinstance(response, StreamingResponse) and (response is None or response.status_code != 200):
                undo()
        if isinstance(response, StreamingResponse):
            working: Working = partial(server.precompute.serving, session) if watched else nullcontext
            response.body_iterator = _holding(held.pop_all(), response.body_iterator, working)
        CURRENT.set(None)
        return response


async def _holding(held: AsyncExitStack, events: Any, working: Working) -> AsyncGenerator[str, None]:
    """Pass a stream on, the session held. While its client takes an event, however slowly, nothing is worked on."""
    async with held, aclosing(events):
        while True:
            with working():
                event = await anext(events, None)
            if event is None:
                return
            yield event
