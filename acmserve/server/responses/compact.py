"""Summaries of conversations in OpenAI's form: behind a threshold of /v1/responses, and at /v1/responses/compact.

    /v1/responses           what the model sees  -->  summary   beside what is being answered, word for word
    /v1/responses/compact   what the model sees  -->  summary   behind the messages of the user

The summarizer reads what the model would see, the session's edits applied. It is asked behind the session's own
conversation where it can be. The session is left as it is. Its next request has the item, and what the item stands for
is what the session takes in then. The session is found as for any other request, and the answer says how. Where
something in it is redacted meanwhile, it is read and summarized anew.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acmserve.context.eviction.clearing_edits import Compact
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.errors import AcmError, InvalidRequest, Unavailable
from acmserve.server.budget.budgets import PromptOverhead
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.chat.options import SessionCall, converted
from acmserve.server.chat.preview import Preview, preview_session
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.delivery import deliver_told
from acmserve.server.http.errors import problem_response
from acmserve.server.http.strict_json import parse_json
from acmserve.server.http.tenants import TENANT, with_salt
from acmserve.server.messages.prompt_compactor import Outgrown, PromptCompactor
from acmserve.server.models.message_roles import MessageRoles
from acmserve.server.options.compaction_content import COMPACTION
from acmserve.server.options.context_management import MAX_VALUE
from acmserve.server.responses.answer import usage_of
from acmserve.server.responses.compaction_item import compaction_item, expand
from acmserve.server.responses.history import continued_from
from acmserve.server.responses.items import (
    as_items,
    being_answered,
    items_of,
    leading_instructions,
    plain_items,
    role_of,
)
from acmserve.server.responses.to_chat import to_chat_body
from acmserve.server.sessions.identifier import Identified
from acmserve.server.sessions.sessions import found_anew
from acmserve.server.vllm.responses import ResponsesRequest
from acmserve.validation import echo


@dataclass(frozen=True, slots=True)
class SummarizedItems:
    """A summary of a conversation, and the items that stay beside it. `summary` is None for the `reason`.

    `cached_tokens` are those of the input that were kept or moved.
    """

    summary: str | None
    kept: Sequence[Any]
    input_tokens: int = 0
    output_tokens: int = 0
    reason: str = ""
    cached_tokens: int = 0

    def as_edit(self) -> dict[str, Any]:
        """What the answer says of it."""
        cost = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {"type": COMPACTION, "summary": cost}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the model would see of a conversation. `live` asks behind it, and `found` is its session, if it has one.

    `check_current` is that of its preview.
    """

    messages: Sequence[Message]
    live: LivePrompt | None = None
    found: Identified | None = None
    check_current: Callable[[], None] = lambda: None


async def summarize_items(
    server: ContextServer, call: SessionCall, seen: Preview, items: Sequence[Any], threshold: int
) -> SummarizedItems | None:
    """Summarize what the model would see of a call. None when the client has gone meanwhile.

    What is being answered stays word for word. It is looked for in the client's items, or in what the session holds.
    """
    shown = seen.messages
    if continued_from(call.body) is not None:
        items = items_of([message for message in shown if message is not shown[0] or message.get("role") != "system"])
    head = leading_instructions(items)
    kept = [*head, *being_answered(items[len(head) :])]
    num_kept = server.budgets.num_overhead(PromptOverhead(seen.body.get("tools") or ()))
    num_kept += count_tokens(server.tokenizer, str(kept))
    outgrown = Outgrown(Compact(threshold), shown, num_kept, seen.live, check_current=seen.check_current)
    return await _summarized(call.raw_request, outgrown, kept)


def compact_route(server_of: Callable[[Request], ContextServer | None]) -> Callable[..., Awaitable[Response | None]]:
    """The route function of POST /v1/responses/compact."""

    async def compact(raw_request: Request) -> Response | None:
        """Gives the conversation back as the user's messages and one compaction item, for the next request."""
        server = server_of(raw_request)
        try:
            if server is None:
                raise Unavailable("this server holds no sessions, and writes no summaries")
            return await found_anew(partial(_compact, server, raw_request))
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False)) from error
        except AcmError as error:
            return problem_response(error)

    return compact


async def _compact(server: ContextServer, raw_request: Request) -> Response | None:
    body = parse_json(await raw_request.body())
    if not isinstance(body, Mapping):
        raise InvalidRequest("body", f"must be an object, not {echo(body)}.", "Send one, as to /v1/responses.")
    items = plain_items(expand(as_items(body.get("input"))))
    request: ResponsesRequest = ResponsesRequest.model_validate({**body, "input": items, "stream": False})
    seen = await _seen(server, raw_request, body, request)
    if continued_from(body) is not None:
        items = items_of(seen.messages)
    outgrown = Outgrown(Compact(MAX_VALUE), seen.messages, 0, seen.live, check_current=seen.check_current)
    done = await _summarized(raw_request, outgrown, ())
    if done is None:
        return None
    if done.summary is None:
        raise Unavailable(f"the conversation was not compacted: {done.reason}")
    found = seen.found
    family = None if found is None or found.begins else found.family
    item = compaction_item(done.summary, (), covers_all=False, session_id=family)
    usage: dict[str, Any] = {"prompt_tokens": done.input_tokens, "completion_tokens": done.output_tokens}
    usage["prompt_tokens_details"] = {"cached_tokens": done.cached_tokens}
    answer = {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*(_user_item(item) for item in items if role_of(item) == "user"), item],
        "usage": usage_of(usage),
    }
    response = JSONResponse(answer)
    return response if found is None else deliver_told(response, found.told)


async def _seen(
    server: ContextServer, raw_request: Request, body: Mapping[str, Any], request: ResponsesRequest
) -> _Seen:
    """What the model would see of the conversation: with a session as the session shows it."""
    roles = getattr(raw_request.app.state, "acm_message_roles", MessageRoles())
    goes_on_from = continued_from(body)
    chat_body = to_chat_body(request, body, roles, begins=goes_on_from is None)
    tenant = server.sessions.tenant_of(raw_request.headers, body.get("cache_salt"))
    TENANT.set(tenant)
    found = server.identifier.look(body, raw_request.headers, tenant, is_held=True, is_use=True)
    if found is None:
        if goes_on_from is not None:
            raise InvalidRequest(
                "previous_response_id", "needs a session, which holds the history.", "Send the whole `input`."
            )
        return _Seen(chat_body["messages"])
    chat = converted(chat_body, with_salt(body, raw_request.headers), raw_request, found)
    preview = await preview_session(server, replace(chat, goes_on_from=goes_on_from))
    return _Seen(preview.messages, preview.live, found, preview.check_current)


async def _summarized(raw_request: Request, outgrown: Outgrown, kept: Sequence[Any]) -> SummarizedItems | None:
    compactor: PromptCompactor = raw_request.app.state.acm_context_editor.compactor
    done = await compactor.compact(outgrown, raw_request)
    if done is None:
        return None
    num_read = done.input_tokens + done.cached_tokens
    return SummarizedItems(done.summary, kept, num_read, done.output_tokens, done.reason, done.cached_tokens)


def _user_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """A message of the user as an output item."""
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    own = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "user", "status": "completed"}
    return {**own, "content": parts}
