"""vLLM's endpoint plugin: the answering routes of vLLM's own server, sessions added.

Decision: routes and not an ASGI middleware. vLLM lets a plugin replace a route
(plugins/endpoint_plugins/interface.py:75), so each route below is vLLM's own function in a wrapper. The wrapper runs
inside authentication and CORS, and reads the body that the framework has parsed already (Starlette keeps
`request.json()`). It rewrites no request and buffers no stream. When there is no session it calls vLLM's function with
the same arguments. A middleware named with `--middleware` would run outside of authentication and would have to parse
each body a second time.

    route                      session held here        session of the engine alone       no session
    /v1/chat/completions       `SESSION_ANSWERS`        `with_session`                    vLLM's own function
    /v1/messages, its count    `SESSION_ANSWERS`        `with_session`                    vLLM's own function
    /v1/responses              `SESSION_ANSWERS`        `with_session`                    vLLM's own function
    /v1/completions                                     `with_session`                    vLLM's own function

The sessions held here have one layer, the turn of a chat (`chat/turn.py`). A route converts to it and back. Where
several API servers run, only the engine knows sessions. On vLLM's other routes (batches, token-in-token-out) a session
counts as well, validated in `exchange.py`. Its receipt is in `kv_transfer_params` there. `context_management` counts
without a session, too, see `context_editor.py`.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import Response
from vllm.engine.protocol import EngineClient
from vllm.logger import init_logger

from acmserve.context.anthropic.compaction_blocks import check_compaction, has_compaction
from acmserve.context.eviction.clearing_edits import COMPACT, Compact, VendorEdit
from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.engine.config import CONNECTOR_NAME
from acmserve.errors import EngineMismatch, InvalidRequest
from acmserve.server.app.access import has_api_keys
from acmserve.server.app.engine_death import ENGINE_DEATH
from acmserve.server.app.in_session import NOT_APPLIED, SessionAnswer, in_session, refuse
from acmserve.server.app.openapi import document_requests, documented
from acmserve.server.app.signatures import extended_signature
from acmserve.server.app.startup import open_identifier, open_server
from acmserve.server.chat.turn import answer_chat_call
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT, Exchange, deliver, tap_generate
from acmserve.server.exchange.receipt_header import RECEIPT_HEADER
from acmserve.server.exchange.redaction import Engines
from acmserve.server.http.strict_json import parse_json
from acmserve.server.http.tenants import CallerMiddleware, Tenants, account_of, engine_session_id
from acmserve.server.http.vendor_route import VendorRoute
from acmserve.server.identity.sources import SESSION_HEADER
from acmserve.server.messages.context_editor import ContextEditor, EditingRequest
from acmserve.server.messages.request import plain_body
from acmserve.server.messages.route import answer_messages, count_messages
from acmserve.server.models.message_roles import open_roles
from acmserve.server.models.summarizer import open_summarizer
from acmserve.server.models.template_probe import open_probe
from acmserve.server.models.tokenizer import ServedTokenizer
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.context_management import FIELD, parse_context_management
from acmserve.server.options.session_params import check_no_loop, is_plain
from acmserve.server.responses.compact import compact_route
from acmserve.server.responses.route import answer_responses
from acmserve.server.routes.router import router
from acmserve.server.sessions.identifier import Attempt, Identified, Identifier
from acmserve.server.vllm.message_usage import start_with_cached_tokens
from acmserve.server.vllm.model_names import ASKED_NAME, echo_names
from acmserve.server.vllm.overflow import count_overflows
from acmserve.server.vllm.taps import on_shutdown, set_signature, tap_engine_client

CHAT_PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
RESPONSES_PATH = "/v1/responses"
COMPACT_PATH = "/v1/responses/compact"
REQUIRED_PATHS = frozenset({CHAT_PATH, "/v1/completions"})
PATHS = REQUIRED_PATHS | {RESPONSES_PATH, MESSAGES_PATH, COUNT_PATH}
EDITED_PATHS = (CHAT_PATH, MESSAGES_PATH, COUNT_PATH)

COMPACTION_HEADER = "X-ACM-Compaction"
NO_COMPACTION = "none, context_management of /v1/responses needs a session id"
NO_RECEIPT = "none, this request has several answers or prompts and was answered without its session"

logger = init_logger(f"vllm.{__name__}")

Endpoint = Callable[..., Awaitable[Response | None]]

SESSION_ANSWERS: Mapping[str, SessionAnswer] = {
    CHAT_PATH: answer_chat_call,
    MESSAGES_PATH: answer_messages,
    COUNT_PATH: count_messages,
    RESPONSES_PATH: answer_responses,
}
"""Who answers where a session is held here. Each converts to the turn of a chat and back."""


class SessionEndpoint:
    """Loaded by vLLM once per API server process. Does nothing when the engine runs without our connector."""

    name = "acmserve"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Replace vLLM's answering routes. Raises EngineMismatch when vLLM has none of that name."""
        if not _has_connector(app.state.args):
            logger.warning(
                "acmserve: sessions are off, because the engine runs without kv_connector %s; "
                "start the server with `acmserve serve`.",
                CONNECTOR_NAME,
            )
            return
        routes = [r for r in app.routes if isinstance(r, APIRoute) and r.path in PATHS and "POST" in r.methods]
        missing = REQUIRED_PATHS - {route.path for route in routes}
        if missing:
            raise EngineMismatch(f"this vLLM has no POST route {', '.join(sorted(missing))}; sessions need it")
        document_requests(app)
        chat_core = next(route.endpoint for route in routes if route.path == CHAT_PATH)
        app.add_middleware(CallerMiddleware)
        on_shutdown(app, ENGINE_DEATH.look)
        if _has_sessions(app.state.args):
            app.include_router(router())
            on_shutdown(app, _close)
            _add_compact(app, routes)
        for route in routes:
            app.router.add_api_route(
                route.path,
                _coated(route, chat_core),
                methods=["POST"],
                route_class_override=VendorRoute,
                dependencies=route.dependencies,
                responses=documented(route.path, route.responses),
                name=route.name,
                summary=route.summary,
                description=route.description,
                tags=route.tags,
            )

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Tap the engine client, which vLLM's handlers share, and open the sessions."""
        if engine_client is None or not _has_connector(args):
            return
        max_model_len = engine_client.model_config.max_model_len
        config = ContextConfig.parse(args.kv_transfer_config.kv_connector_extra_config)
        tenants = state.acm_tenants = Tenants(has_api_keys(args), share_prefixes=config.share_prefixes)
        engines = Engines.of(engine_client.vllm_config.parallel_config)
        ENGINE_DEATH.watch(engine_client)
        tap_engine_client(engine_client, lambda generate: tap_generate(generate, max_model_len, tenants, engines))
        count_overflows(engine_client.renderer)
        echo_names(state.openai_serving_models)
        for handler in ("anthropic_serving_messages", "openai_serving_chat"):
            start_with_cached_tokens(getattr(state, handler, None))
        tokenizer = engine_client.renderer.get_tokenizer()
        counting = ServedTokenizer(tokenizer)
        probe = open_probe(tokenizer, lambda text: count_tokens(counting, text), args.chat_template)
        state.acm_message_roles = open_roles(tokenizer, args.chat_template)
        state.acm_context_editor = ContextEditor(probe, open_summarizer(config, state))
        if _has_sessions(args):
            state.acm_server = open_server(engine_client, state, args, probe)
        else:
            state.acm_identifier = open_identifier(config)


def _add_compact(app: FastAPI, routes: Sequence[APIRoute]) -> None:
    """POST /v1/responses/compact, which vLLM does not have, with what its route of responses depends on."""
    for route in routes:
        if route.path == RESPONSES_PATH:
            app.router.add_api_route(
                COMPACT_PATH,
                compact_route(lambda request: getattr(request.app.state, "acm_server", None)),
                methods=["POST"],
                route_class_override=VendorRoute,
                dependencies=route.dependencies,
                summary="Compact a conversation",
                tags=route.tags,
                response_model=None,
            )


def _coated(route: APIRoute, chat_core: Endpoint) -> Endpoint:
    """Ours around vLLM's function of a route. Its name and its signature, which FastAPI reads, stay.

    Some bodies may hold more than vLLM's own: compaction blocks and items.
    """
    core: Endpoint = route.endpoint
    endpoint = with_session(core)
    if route.path in SESSION_ANSWERS:
        answer, only_counts = SESSION_ANSWERS[route.path], route.path == COUNT_PATH
        endpoint = functools.wraps(core)(in_session(answer, chat_core, endpoint, leaves_no_trace=only_counts))
    endpoint = _named(endpoint)
    set_signature(endpoint, extended_signature(core))
    return endpoint


def _named(endpoint: Endpoint) -> Endpoint:
    """Have the answer name the model as the request does."""

    @functools.wraps(endpoint)
    async def named(*args: Any, **kwargs: Any) -> Response | None:
        ASKED_NAME.set(kwargs["request"].model)
        return await endpoint(*args, **kwargs)

    return named


def with_session(core: Endpoint) -> Endpoint:
    """Wrap one of vLLM's route functions `(request, raw_request)`. `in_session` has the sessions held here."""

    @functools.wraps(core)
    async def endpoint(*args: Any, **kwargs: Any) -> Response | None:
        raw_request: Request = kwargs["raw_request"]
        body = await raw_request.json()
        path = raw_request.url.path
        CURRENT.set(None)
        try:
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
                    check_no_loop(body)
                    CURRENT.set(_engine_exchange(found, raw_request))
                answer = _answer_edited(core, kwargs) if is_edited else core(*args, **kwargs)
                response = await answer
                attempt.is_answered = response is not None and response.status_code == 200
        except InvalidRequest as error:
            return refuse(error, path)
        exchange = CURRENT.get()
        return response if exchange is None else deliver(response, exchange)

    return endpoint


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
    """The exchange of a request whose session only the engine knows."""
    name, account = engine_session_id(found.tenant, found.engine_id), account_of(found.tenant)
    engine_params = replace(found.params, session_id=name, account=account)
    reason = getattr(raw_request.state, NOT_APPLIED, None)
    fields = found.fields if reason is None else {**found.fields, NOT_APPLIED: reason}
    return Exchange(engine_params, found.params.session_id, fields=fields)


async def _close(app: FastAPI) -> None:
    """The updates of context maps end with the server. The sessions' file gets what it lacks."""
    server: ContextServer | None = getattr(app.state, "acm_server", None)
    if server is not None:
        await server.maps.close()
        server.store.close()


def _has_sessions(args: Namespace) -> bool:
    """Transcripts live in one process: with several API servers only the engine knows sessions."""
    return (getattr(args, "api_server_count", None) or 1) == 1


def _has_connector(args: Namespace) -> bool:
    config = args.kv_transfer_config
    return config is not None and config.kv_connector == CONNECTOR_NAME
