"""One chat request of a session: the client's history is taken in, the session's edits are replayed on it, the answer
is recorded.

    client's messages --adopt--> state --render--> messages with the session's edits --> vLLM's own route --> answer
                                   |                                                                            |
                                   +--- or the tool loop, when the request asks for it ---                 recorded

Clients resend their whole history, so an edit made once has to be replayed at every turn, to the byte: otherwise the
edited prefix would not be found in the cache. A request of a session that was never edited reaches vLLM as it came.

Nothing is lost by a request that fails: the session keeps the state from before. What the client has been answered is
recorded only if nobody changed the conversation meanwhile.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from acmserve.context.message import Message
from acmserve.context.render import render
from acmserve.context.session import Session
from acmserve.context.state import Origin, SessionState, adopt, append_answer, end_turn
from acmserve.edit.session_params import SessionParams
from acmserve.server.exchange import CURRENT
from acmserve.server.loop_options import LoopOptions
from acmserve.server.message_builder import MessageBuilder
from acmserve.server.sessions import Sessions
from acmserve.server.tool_loop import Turn, run_loop

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


async def answer_chat(sessions: Sessions, chat: ChatRequest, core: Endpoint) -> Response | None:
    """Answer with vLLM's route function `core(request, raw_request)`. Raises InvalidRequest."""
    session = sessions.store.open(chat.tenant, chat.params.session_id)
    if chat.loop is not None:
        return await _answer_in_loop(sessions, session, chat, core)
    async with sessions.locked(session):
        recording = _Recording(sessions, session, session.state, chat)
    state = adopt(session.state, chat.body["messages"]).state
    messages = render(state)
    CURRENT.set(sessions.exchange(session, chat.params, messages))
    response = await core(request=_edited(chat, state, messages), raw_request=chat.raw_request)
    if isinstance(response, StreamingResponse):
        response.body_iterator = _recorded(recording, response.body_iterator)
    elif isinstance(response, JSONResponse) and response.status_code == 200:
        choices = json.loads(bytes(response.body))["choices"]
        recording.record(choices[0]["message"] if choices else None)
    return response


def _edited(chat: ChatRequest, state: SessionState, messages: list[Message]) -> ChatCompletionRequest:
    """The request with the messages that the model is to see; the very object where that is what the client sent."""
    if all(entry.origin is not Origin.INTERNAL for entry in state.entries) and messages == chat.body["messages"]:
        return chat.request
    return ChatCompletionRequest.model_validate(chat.body | {"messages": copy.deepcopy(messages)})


@dataclass(frozen=True, slots=True)
class _Recording:
    """What a request found when it began, and what it leaves behind when it is answered."""

    sessions: Sessions
    session: Session
    before: SessionState
    chat: ChatRequest

    def record(self, message: Message | None) -> None:
        """Store the client's history and the answer.

        An edit made meanwhile stays; when another request of the session was answered meanwhile, that one wins: the
        client will send what it made of the two. A session deleted meanwhile stays deleted. An answer that continues
        the client's last message is left out.
        """
        if not self.sessions.store.holds(self.session):
            return
        if self.session.state.num_turns != self.before.num_turns:
            return
        state = adopt(self.session.state, self.chat.body["messages"]).state
        if message is not None and not self.chat.request.continue_final_message:
            state = append_answer(state, {name: value for name, value in message.items() if value is not None})
        self.sessions.store.save(self.session, end_turn(state))


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
        await held.enter_async_context(sessions.locked(session))
        before = session.state
        sessions.store.save(session, adopt(before, chat.body["messages"]).state)
        try:
            turn = Turn(sessions, session, chat.loop, chat.params)
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
