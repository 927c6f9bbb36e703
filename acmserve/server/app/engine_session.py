"""Requests whose session only the engine knows, and those without any: vLLM's own function answers them.

    request --identified--> exchange --> vLLM's function --> answer with the receipt
            --no session--> vLLM's function, with the same arguments
            --context_management, no session--> edited alone, see `context_editor.py`

It keeps no transcript. `in_session.py` has the sessions that are held here.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from acmserve.context.anthropic.compaction_blocks import check_compaction, has_compaction
from acmserve.context.eviction.clearing_edits import COMPACT, Compact, VendorEdit
from acmserve.context.session.turns.turn import TurnOrigin
from acmserve.errors import InvalidRequest
from acmserve.server.app.in_session import NOT_APPLIED, refuse, sent_body
from acmserve.server.app.paths import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    COUNT_PATH,
    EDITED_PATHS,
    MESSAGES_PATH,
    RESPONSES_PATH,
)
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.delivery import deliver, deliver_told
from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.exchange.receipt_header import RECEIPT_HEADER
from acmserve.server.http.strict_json import parse_json
from acmserve.server.http.tenants import TENANT, Tenants, account_of, engine_session_id
from acmserve.server.messages.context_editor import ContextEditor, EditingRequest
from acmserve.server.messages.request import plain_body
from acmserve.server.options.context_management import FIELD, parse_context_management
from acmserve.server.options.field_names import check_field_names
from acmserve.server.options.session_params import SESSION_HEADER, check_no_loop, is_plain
from acmserve.server.sessions.identifier import Attempt, Identified, Identifier
from acmserve.server.sessions.sessions import engine_key
from acmserve.server.vllm.model_names import ASKED_NAME

COMPACTION_HEADER = "X-ACM-Compaction"
NO_COMPACTION = "none, context_management of /v1/responses needs a session id"
NO_RECEIPT = "none, this request has several answers or prompts and was answered without its session"

Endpoint = Callable[..., Awaitable[Response | None]]


def with_session(core: Endpoint) -> Endpoint:
    """Wrap one of vLLM's route functions `(request, raw_request)`. `in_session` has the sessions held here."""

    @functools.wraps(core)
    async def endpoint(*args: Any, **kwargs: Any) -> Response | None:
        raw_request: Request = kwargs["raw_request"]
        body = await sent_body(raw_request)
        path = raw_request.url.path
        CURRENT.set(None)
        ASKED_NAME.set(kwargs["request"].model)
        try:
            check_field_names(body, type(kwargs["request"]), _identifier(raw_request).sources)
            found = _identified(body, raw_request)
            params = None if found is None else found.params
            is_edited = path.endswith(EDITED_PATHS) and body.get(FIELD) is not None
            if path.endswith((MESSAGES_PATH, COUNT_PATH)) and has_compaction(body.get("messages")):
                check_compaction(body["messages"])
                is_edited = is_edited or path.endswith(COUNT_PATH)
            if params is None and not is_edited:
                if is_plain(body, raw_request.headers, _identifier(raw_request).sources):
                    return await _answer_plainly(core, kwargs)
                if all(source.path != SESSION_HEADER for source in _identifier(raw_request).sources):
                    _hide_session_header(raw_request)
                return _noted(await core(*args, **kwargs), body, path)
            with nullcontext(Attempt()) if found is None else found.attempt() as attempt:
                if found is not None:
                    check_no_loop(body, *_why_no_transcript(raw_request))
                    if not path.endswith(COUNT_PATH):
                        CURRENT.set(_engine_exchange(found, raw_request))
                answer = _answer_edited(core, kwargs) if is_edited else core(*args, **kwargs)
                response = await answer
                attempt.is_answered = response is not None and response.status_code == 200
        except InvalidRequest as error:
            return refuse(error, path)
        if path.endswith(COUNT_PATH) and found is not None:
            return deliver_told(response, found.told)
        exchange = CURRENT.get()
        return response if exchange is None else deliver(response, exchange)

    return endpoint


def _why_no_transcript(raw_request: Request) -> tuple[str, str]:
    """Why this request keeps no transcript, and what its client may do instead."""
    reason = getattr(raw_request.state, NOT_APPLIED, None)
    if reason is not None:
        return f"vLLM answers this request by itself: {reason}", "Send what has a form in a chat"
    if raw_request.url.path.endswith(COMPLETIONS_PATH):
        return f"{COMPLETIONS_PATH} keeps none", f"Send it to {CHAT_PATH}, {MESSAGES_PATH} or {RESPONSES_PATH}"
    return "API servers of plain `vllm serve` keep none where there are several", "Start them with `acmserve serve`"


async def _answer_plainly(core: Endpoint, kwargs: Mapping[str, Any]) -> Response | None:
    """Answer as vLLM without a session, and say so in a header."""
    _hide_session_header(kwargs["raw_request"])
    response = await core(**kwargs)
    if response is not None:
        response.headers[RECEIPT_HEADER] = NO_RECEIPT
    return response


def _hide_session_header(raw_request: Request) -> None:
    """Let vLLM read no session out of its own header."""
    headers = raw_request.scope["headers"]
    headers[:] = [(name, value) for name, value in headers if name.lower() != SESSION_HEADER.encode()]


def _noted(response: Response | None, body: Any, path: str) -> Response | None:
    """vLLM's answer. A compaction that vLLM would have passed over in silence is told in a header."""
    if response is not None and path.endswith(RESPONSES_PATH) and isinstance(body, Mapping) and body.get(FIELD):
        response.headers[COMPACTION_HEADER] = NO_COMPACTION
    return response


async def _answer_edited(core: Endpoint, kwargs: Mapping[str, Any]) -> Response | None:
    """Answer a request with `context_management` that is judged alone."""
    raw_request: Request = kwargs["raw_request"]
    editor: ContextEditor = raw_request.app.state.acm_context_editor
    body = plain_body(parse_json(await raw_request.body()))
    edits = parse_context_management(body) or ()
    asked = EditingRequest(kwargs["request"], raw_request, body, edits)
    path = raw_request.url.path
    if path.endswith(CHAT_PATH):
        _check_no_compact(edits)
        return await editor.answer_chat(asked, core)
    return await (editor.count_messages if path.endswith(COUNT_PATH) else editor.answer_messages)(asked, core)


def _check_no_compact(edits: Sequence[VendorEdit]) -> None:
    """Raise InvalidRequest for a summary that nobody would keep: OpenAI's protocol has no block for it."""
    for index, edit in enumerate(edits):
        if isinstance(edit, Compact):
            raise InvalidRequest(
                f"{FIELD}.edits[{index}].type",
                f"{COMPACT} needs a session here, which keeps the summary.",
                "Send a `session_id`, or use /v1/messages, where the client keeps it.",
            )


def _identified(body: Any, raw_request: Request) -> Identified | None:
    """The session of a request whose transcript nobody keeps. One that only counts tokens leaves no trace."""
    identifier, headers = _identifier(raw_request), raw_request.headers
    tenants: Tenants = getattr(raw_request.app.state, "acm_tenants", Tenants(has_api_keys=True))
    salt = body.get("cache_salt") if isinstance(body, Mapping) else None
    tenant = tenants.of(headers, salt if isinstance(salt, str) else None)
    TENANT.set(tenant)
    if raw_request.url.path.endswith(COUNT_PATH):
        return identifier.look(body, headers, tenant)
    return identifier.identify(body, headers, tenant)


def _identifier(raw_request: Request) -> Identifier:
    state = raw_request.app.state
    server: ContextServer | None = getattr(state, "acm_server", None)
    if server is not None:
        return server.identifier
    if not hasattr(state, "acm_identifier"):
        state.acm_identifier = Identifier()
    identifier: Identifier = state.acm_identifier
    return identifier


def _engine_exchange(found: Identified, raw_request: Request) -> Exchange:
    """The exchange of a request whose session only the engine knows. One of that name that is held here counts it.

    It carries what was removed there. Nobody cuts redacted text out of its prompt, so it becomes no source behind that.
    """
    reason = getattr(raw_request.state, NOT_APPLIED, None)
    fields = found.fields if reason is None else {**found.fields, NOT_APPLIED: reason}
    exchange, key = Exchange(found.params, found.params.session_id, fields=fields), (found.tenant, found.engine_id)
    server: ContextServer | None = getattr(raw_request.app.state, "acm_server", None)
    if server is not None:
        origin = TurnOrigin(raw_request.url.path)
        running = server.sessions.turns.begin_named(found.tenant, found.params.session_id, origin)
        if running is not None:
            exchange.on_end, key = running.ended, engine_key(running.session)
            if running.session.state.redacted:
                exchange.params = replace(found.params, unrecorded=True)
        server.sessions.carry_removals(exchange, key)
    name, account = engine_session_id(*key), account_of(found.tenant)
    exchange.params = replace(exchange.params, session_id=name, account=account)
    return exchange
