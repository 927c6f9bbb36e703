"""/v1/responses for the sessions that are held here: the chat of the session answers.

    items --expand--> items --to_chat--> answer_session --answer, stream--> response
                        |                     |
                        |                     budgets, edits, tools, branches, maps, receipts: as in a chat
                        '-- over `compact_threshold`: a summary takes their place, and the client gets it as an item

A request that no chat can express is vLLM's own (`inexpressible`). The answer says that the session's edits were not
applied, and why.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.server.chat.options import ChatRequest, SessionCall
from acmserve.server.chat.preview import preview_session
from acmserve.server.chat.turn import answer_session
from acmserve.server.context.server import ContextServer
from acmserve.server.models.message_roles import MessageRoles
from acmserve.server.options.context_management import FIELD
from acmserve.server.responses.answer import Asked, whole_response
from acmserve.server.responses.compact import summarize_items
from acmserve.server.responses.compaction_item import compaction_item, expand
from acmserve.server.responses.compaction_options import parse_compaction
from acmserve.server.responses.history import answer_fields, continued_from
from acmserve.server.responses.items import as_items, plain_items
from acmserve.server.responses.stream import response_events
from acmserve.server.responses.to_chat import inexpressible, to_chat_body
from acmserve.server.vllm.handlers import with_sse_keep_alive
from acmserve.server.vllm.responses import ResponsesRequest

Endpoint = Callable[..., Awaitable[Response | None]]
_OWN_HEADERS = ("content-length", "content-type")


async def answer_responses(server: ContextServer, call: SessionCall, core: Endpoint) -> Response | None:
    """Answer a request of /v1/responses. `core` is vLLM's route function of chats. Raises AcmError."""
    threshold = parse_compaction(call.body, server.budgets.window)
    items = plain_items(expand(as_items(call.body.get("input"))))
    request = _with_items(call, items)
    serving = call.raw_request.app.state.openai_serving_responses
    reason = inexpressible(request, serving)
    if reason is not None:
        return await call.leave(reason)
    chat = _chat(call, request)
    asked = Asked(request, serving)
    asked.check()
    if threshold is not None:
        seen = await preview_session(server, chat)
        if seen.num_tokens > threshold:
            summarized = await summarize_items(server, call, seen, items, threshold)
            if summarized is None:
                return None
            if summarized.summary is None:
                asked = replace(asked, fields={FIELD: {"unmet": f"compaction: {summarized.reason}"}})
            else:
                item = compaction_item(
                    summarized.summary, summarized.kept, covers_all=True, session_id=call.found.family
                )
                asked = Asked(request, serving, (item,), {FIELD: {"applied_edits": [summarized.as_edit()]}})
                chat = _chat(call, _with_items(call, expand([item])), begins=True)
                chat = replace(chat, goes_on_from=None, check_current=seen.check_current)
    response = _to_response(await answer_session(server, chat, core), asked, call)
    if response is not None and response.status_code == 200:
        server.identifier.responses.note(call.tenant, request.request_id, call.params.session_id)
    return response


def _with_items(call: SessionCall, items: list[Any]) -> ResponsesRequest:
    """The request with other items, under its id."""
    own = {"input": items, "request_id": call.request.request_id}
    request: ResponsesRequest = ResponsesRequest.model_validate({**call.body, **own})
    return request


def _chat(call: SessionCall, request: ResponsesRequest, *, begins: bool = False) -> ChatRequest:
    roles = getattr(call.raw_request.app.state, "acm_message_roles", MessageRoles())
    goes_on_from = continued_from(call.body)
    parses_calls = bool(getattr(call.raw_request.app.state.openai_serving_responses, "enable_auto_tools", True))
    is_new = begins or goes_on_from is None
    body = to_chat_body(request, call.body, roles, begins=is_new, parses_calls=parses_calls)
    fields = answer_fields(call.body, request.request_id)
    return replace(call.chat(body), goes_on_from=goes_on_from, answer_fields=fields)


def _to_response(response: Response | None, asked: Asked, call: SessionCall) -> Response | None:
    """The chat's answer as that of /v1/responses. Errors pass as they are: both routes have one shape of them."""
    if response is None or response.status_code != 200:
        return response
    headers = {name: value for name, value in response.headers.items() if name not in _OWN_HEADERS}
    if isinstance(response, StreamingResponse):
        seconds = float(getattr(getattr(call.raw_request.app.state, "args", None), "sse_keep_alive_interval", 0))
        events = with_sse_keep_alive(response_events(asked, response.body_iterator), seconds)
        return StreamingResponse(
            events, headers=headers, media_type="text/event-stream", background=response.background
        )
    body = whole_response(asked, json.loads(bytes(response.body)))
    return JSONResponse(body, headers=headers, background=response.background)
