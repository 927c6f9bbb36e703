"""/v1/messages and its count for the sessions that are held here: the chat of the session answers.

    Anthropic request --to_chat--> answer_session --from_chat--> Anthropic answer
              |                         |
              |                         budgets, edits, tools, branches, maps, receipts: as in a chat
              '-- over the trigger of `compact_20260112`: a summary first, whose block the client keeps

Requests arrive with earlier compaction blocks applied (see `request.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acmserve.context.anthropic.compaction_blocks import check_compaction, has_compaction, without_compaction
from acmserve.context.eviction.clearing_edits import Compact
from acmserve.errors import InvalidRequest
from acmserve.server.chat.options import SessionCall
from acmserve.server.chat.preview import preview_session
from acmserve.server.chat.turn import answer_session
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.delivery import deliver_told
from acmserve.server.messages.context_editor import ContextEditor, EditingRequest
from acmserve.server.messages.from_chat import to_message_answer
from acmserve.server.messages.request import plain_body
from acmserve.server.messages.to_chat import to_chat_request
from acmserve.server.models.message_roles import MessageRoles
from acmserve.server.options.context_management import FIELD, parse_context_management
from acmserve.server.vllm.handlers import AnthropicMessage, ChatCompletionRequest
from acmserve.server.vllm.messages import count_prompt

Endpoint = Callable[..., Awaitable[Response | None]]


async def answer_messages(server: ContextServer, call: SessionCall, core: Endpoint) -> Response | None:
    """Answer a request of /v1/messages. `core` is vLLM's route function of chats. Raises what it does, and AcmError."""
    call = replace(call, body=plain_body(call.body))
    edits = _checked(call)
    state = call.raw_request.app.state
    serving, roles = state.anthropic_serving_messages, _roles(state)

    async def answer(request: Any, check_current: Callable[[], None] | None = None) -> Response | None:
        chat = replace(await to_chat_request(call, request, serving, roles), check_current=check_current)
        response = await answer_session(server, chat, core)
        return to_message_answer(response, serving, _keep_alive_seconds(call.raw_request))

    compact = next((edit for edit in edits if isinstance(edit, Compact)), None)
    if compact is None:
        return await answer(call.request)
    chat = await to_chat_request(call, call.request, serving, roles)
    seen = await preview_session(server, chat)
    if seen.num_tokens <= compact.trigger_tokens:
        return await answer(call.request)
    editor: ContextEditor = state.acm_context_editor
    asked = EditingRequest(call.request, call.raw_request, call.body, (compact,), call.found.family)
    current = seen.check_current
    summarized = partial(answer, check_current=current)
    return await editor.answer_compacted(asked, seen.messages, summarized, live=seen.live, check_current=current)


async def count_messages(server: ContextServer, call: SessionCall, core: Endpoint) -> Response | None:
    """Answer a request of /v1/messages/count_tokens: what the model would be shown, and what was sent."""
    call = replace(call, body=plain_body(call.body))
    edits = _checked(call)
    if (call.body.get("acm") or {}).get("map") is not None:
        raise InvalidRequest("acm.map", "is chosen for an answer, and cannot be counted before.", "Leave it out.")
    state = call.raw_request.app.state
    serving = state.anthropic_serving_messages
    chat = await to_chat_request(call, call.request, serving, _roles(state))
    seen = await preview_session(server, chat)
    num_tokens = await count_prompt(serving, ChatCompletionRequest.model_validate(seen.body), seen.as_served)
    if not isinstance(num_tokens, int):
        return num_tokens
    counted: dict[str, Any] = {"input_tokens": num_tokens}
    num_sent = await _count_sent(call, serving, _roles(state))
    if isinstance(num_sent, int):
        counted[FIELD] = {"original_input_tokens": num_sent}
    elif edits:
        return num_sent
    return deliver_told(JSONResponse(counted), call.found.told)


async def _count_sent(call: SessionCall, serving: Any, roles: MessageRoles) -> int | JSONResponse:
    """The tokens of all that the client sent, as if nothing had been edited."""
    request = call.request
    if has_compaction(call.body.get("messages")):
        whole = [AnthropicMessage.model_validate(message) for message in without_compaction(call.body["messages"])]
        request = request.model_copy(update={"messages": whole})
    chat = await to_chat_request(call, request, serving, roles)
    return await count_prompt(serving, chat.request)


def _checked(call: SessionCall) -> tuple[Any, ...]:
    """The edits that a call asks for. Raises InvalidRequest."""
    if has_compaction(call.body.get("messages")):
        check_compaction(call.body["messages"])
    return parse_context_management(call.body) or ()


def _roles(state: Any) -> MessageRoles:
    return getattr(state, "acm_message_roles", MessageRoles())


def _keep_alive_seconds(raw_request: Request) -> float:
    """vLLM's `--sse-keep-alive-interval`. 0: off."""
    return float(getattr(getattr(raw_request.app.state, "args", None), "sse_keep_alive_interval", 0))
