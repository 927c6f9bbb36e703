"""Brings a request of one of vLLM's routes to the session that it names, if that is held here.

    request --session?--> tenant, body, params --> the route's own answer     chat turn, converted to it and back
                 |                                      '--leave(reason)--.
                 '------------------------ no ------------------------> vLLM's function, as it is wrapped elsewhere

It knows sessions and tenants. What an answer is made of is the route's.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acmserve.errors import AcmError, InvalidRequest, StorageFailed
from acmserve.server.app.paths import RESPONSES_PATH
from acmserve.server.chat.options import SessionCall
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.http.errors import problem_response
from acmserve.server.http.strict_json import parse_json
from acmserve.server.http.tenants import SALT_HEADER, TENANT, with_salt
from acmserve.server.http.vendor_route import ANTHROPIC_PREFIX
from acmserve.server.options.field_names import OURS, check_field_names
from acmserve.server.sessions.identifier import Identified
from acmserve.server.sessions.sessions import found_anew
from acmserve.server.vllm.model_names import ASKED_NAME

NOT_APPLIED = "edits_not_applied"
"""The field of `acm` that says why a session's edits are not in an answer, and the name of it on its way there."""

Endpoint = Callable[..., Awaitable[Response | None]]
SessionAnswer = Callable[[ContextServer, SessionCall, Endpoint], Awaitable[Response | None]]


def in_session(
    answer: SessionAnswer, chat_core: Endpoint, otherwise: Endpoint, *, leaves_no_trace: bool = False
) -> Endpoint:
    """A route function for the sessions that are held here. `chat_core` is vLLM's route function of chats.

    A request without a session, and all where no sessions are held, are answered by `otherwise`. A route that
    `leaves_no_trace` (a count) makes no session, and no thread of one.
    """

    async def endpoint(*args: Any, **kwargs: Any) -> Response | None:
        raw_request: Request = kwargs["raw_request"]
        server: ContextServer | None = getattr(raw_request.app.state, "acm_server", None)
        CURRENT.set(None)
        ASKED_NAME.set(kwargs["request"].model)

        async def leave(reason: str) -> Response | None:
            setattr(raw_request.state, NOT_APPLIED, reason)
            return await otherwise(*args, **kwargs)

        async def answer_found() -> Response | None:
            found = None if server is None else await _found(server, raw_request, leaves_no_trace=leaves_no_trace)
            if found is None or server is None:
                return await otherwise(*args, **kwargs)
            with found.attempt() as attempt:
                body = parse_json(await raw_request.body())
                if SALT_HEADER in raw_request.headers:
                    body = with_salt(body, raw_request.headers)
                call = SessionCall(kwargs["request"], raw_request, body, found, leave)
                response = await answer(server, call, chat_core)
                attempt.is_answered = response is not None and response.status_code == 200
            return response

        try:
            if server is not None and _has_strange_fields(kwargs["request"]):
                names = server.identifier.sources
                check_field_names(await sent_body(raw_request), type(kwargs["request"]), names)
            return await found_anew(answer_found)
        except (InvalidRequest, StorageFailed) as error:
            return refuse(error, raw_request.url.path)
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False)) from error

    return endpoint


def _has_strange_fields(request: BaseModel) -> bool:
    """Whether a body may have fields that neither vLLM nor we know. A request that keeps none of them does not say."""
    return request.model_extra is None or not request.model_extra.keys() <= set(OURS)


async def sent_body(raw_request: Request) -> Any:
    """The body as the client sent it.

    vLLM makes its request of /v1/responses out of the value that `request.json()` keeps. It puts objects of its own in
    the place of calls there, which nobody can tell from nothing. So the body is read once more, and once only.
    """
    if not raw_request.url.path.endswith(RESPONSES_PATH):
        return await raw_request.json()
    if not hasattr(raw_request.state, "sent_body"):
        raw_request.state.sent_body = json.loads(await raw_request.body())
    return raw_request.state.sent_body


async def _found(server: ContextServer, raw_request: Request, *, leaves_no_trace: bool) -> Identified | None:
    body, headers = await sent_body(raw_request), raw_request.headers
    salt = body.get("cache_salt") if isinstance(body, Mapping) else None
    tenant = server.sessions.tenant_of(headers, salt if isinstance(salt, str) else None)
    TENANT.set(tenant)
    if leaves_no_trace:
        return server.identifier.look(body, headers, tenant, is_held=True)
    return server.identifier.identify(body, headers, tenant, is_held=True)


def refuse(error: AcmError, path: str) -> JSONResponse:
    """The error in the shape of vLLM's own, the field in `error.param`, the remedy beside it.

    Anthropic's clients look for `type` beside `error`, and inside for the vendor's names of errors. Of the fields they
    show the message alone, so the remedy is in it.
    """
    response = problem_response(error)
    if ANTHROPIC_PREFIX not in path:
        return response
    fields = json.loads(bytes(response.body))["error"]
    if isinstance(error, InvalidRequest):
        fields["type"] = "not_found_error" if response.status_code == 404 else "invalid_request_error"
        fields["message"] = str(error)
    return JSONResponse({"type": "error", "error": fields}, status_code=response.status_code)
