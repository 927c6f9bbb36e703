"""vLLM's endpoint plugin: the answering routes of vLLM's own server, sessions added.

Decision: routes and not an ASGI middleware. A plugin may replace a route of vLLM
(`server/http/route_places.py`), so each route below is vLLM's own function in a wrapper. The wrapper runs
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
plain vLLM starts several API servers, only the engine knows sessions. On vLLM's other routes (batches,
token-in-token-out) a session counts as well, validated in `exchange.py`. Its receipt is in `kv_transfer_params` there.
`context_management` counts without a session, too, see `context_editor.py`.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State
from starlette.responses import Response
from vllm.engine.protocol import EngineClient
from vllm.logger import init_logger

from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.engine.config import CONNECTOR_NAME, CONNECTOR_NAMES
from acmserve.errors import EngineMismatch
from acmserve.server.app.access import api_keys, check_response_store
from acmserve.server.app.engine_death import ENGINE_DEATH
from acmserve.server.app.engine_session import with_session
from acmserve.server.app.in_session import SessionAnswer, in_session
from acmserve.server.app.launch.api_servers import check_api_servers
from acmserve.server.app.launch.banner import tell_start
from acmserve.server.app.launch.sibling_layer import attach_siblings, has_sessions, settle_siblings
from acmserve.server.app.openapi import document_requests, documented
from acmserve.server.app.paths import (
    CHAT_PATH,
    COMPACT_PATH,
    COUNT_PATH,
    MESSAGES_PATH,
    PATHS,
    REQUIRED_PATHS,
    RESPONSES_PATH,
)
from acmserve.server.app.signatures import extended_signature
from acmserve.server.app.startup import open_identifier, open_server, open_speculator
from acmserve.server.chat.turn import answer_chat_call
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.events import use_format
from acmserve.server.exchange.exchange import tap_generate
from acmserve.server.exchange.redaction import Engines
from acmserve.server.http.abort_route import refuse_aborts
from acmserve.server.http.route_places import take_places
from acmserve.server.http.tenants import CallerMiddleware, Tenants
from acmserve.server.http.vendor_route import VendorRoute
from acmserve.server.inspector.page import inspector_router
from acmserve.server.messages.context_editor import ContextEditor
from acmserve.server.messages.route import answer_messages, count_messages
from acmserve.server.models.message_roles import open_roles
from acmserve.server.models.summarizer import open_summarizer
from acmserve.server.models.template_probe import open_probe
from acmserve.server.models.tokenizer import ServedTokenizer
from acmserve.server.options.config import ContextConfig
from acmserve.server.precompute.incoming import IncomingMiddleware, IncomingRequests, let_background_in
from acmserve.server.responses.compact import compact_route
from acmserve.server.responses.route import answer_responses
from acmserve.server.routes.health import HEALTH_PATH, health_route
from acmserve.server.routes.router import router, router_without_sessions
from acmserve.server.vllm.api_processes import api_process_rank
from acmserve.server.vllm.message_usage import start_with_cached_tokens
from acmserve.server.vllm.model_names import echo_names
from acmserve.server.vllm.overflow import count_overflows
from acmserve.server.vllm.taps import (
    Generate,
    before_shutdown,
    in_this_loop,
    on_shutdown,
    on_startup,
    set_signature,
    tap_engine_client,
)

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
        """Replace vLLM's answering routes. Raises EngineMismatch when vLLM has none of that name, or `AcmError`."""
        if not _has_connector(app.state.args):
            logger.warning(
                "acmserve: sessions are off, because the engine runs without kv_connector %s; "
                "start the server with `acmserve serve`.",
                CONNECTOR_NAME,
            )
            return
        check_response_store(app.state.args)
        theirs = list(app.routes)
        routes = [r for r in theirs if isinstance(r, APIRoute) and r.path in PATHS and "POST" in r.methods]
        missing = REQUIRED_PATHS - {route.path for route in routes}
        if missing:
            raise EngineMismatch(f"this vLLM has no POST route {', '.join(sorted(missing))}; sessions need it")
        document_requests(app)
        chat_core = next(route.endpoint for route in routes if route.path == CHAT_PATH)
        app.add_middleware(CallerMiddleware)
        app.add_middleware(IncomingMiddleware, paths=PATHS - {COUNT_PATH})
        on_shutdown(app, ENGINE_DEATH.look)
        if has_sessions(app.state.args):
            app.include_router(router())
            app.include_router(inspector_router())
            _replace_health(app)
            on_startup(app, tell_start)
            on_shutdown(app, _close)
            _add_compact(app, routes)
        else:
            app.include_router(router_without_sessions(app.state.args.api_server_count))
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
        if len(api_keys(app.state.args)) > 1:
            refuse_aborts(app, theirs)
        take_places(app, theirs)
        attach_siblings(app)

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Tap the engine client, which vLLM's handlers share, and open the sessions."""
        if engine_client is None or not _has_connector(args):
            return
        max_model_len = engine_client.model_config.max_model_len
        config = ContextConfig.parse(args.kv_transfer_config.kv_connector_extra_config)
        use_format(config.log_format)
        keys = api_keys(args)
        tenants = state.acm_tenants = Tenants(len(keys) > 0, known=keys, share_prefixes=config.share_prefixes)
        engines = Engines.of(engine_client.vllm_config.parallel_config)
        ENGINE_DEATH.watch(engine_client)

        def tap(generate: Generate) -> Generate:
            generate = let_background_in(generate)
            speculator = open_speculator(generate, engine_client, config, engines)
            return tap_generate(generate, max_model_len, tenants, engines, speculator)

        tap_engine_client(engine_client, tap)
        count_overflows(engine_client.renderer)
        echo_names(state.openai_serving_models)
        for handler in ("anthropic_serving_messages", "openai_serving_chat"):
            start_with_cached_tokens(getattr(state, handler, None))
        tokenizer = engine_client.renderer.get_tokenizer()
        counting = ServedTokenizer(tokenizer)
        probe = open_probe(tokenizer, lambda text: count_tokens(counting, text), args.chat_template)
        state.acm_message_roles = open_roles(tokenizer, args.chat_template)
        state.acm_context_editor = ContextEditor(probe, open_summarizer(config, state))
        if has_sessions(args):
            state.acm_server = open_server(engine_client, state, args, probe)
            transfer = engine_client.vllm_config.kv_transfer_config
            if args.api_server_count in (None, 1) and transfer is not None and transfer.engine_id is not None:
                state.acm_incoming = IncomingRequests(transfer.engine_id)
            before_shutdown(engine_client, in_this_loop(state.acm_server.precompute.close))
            settle_siblings(state, args, config, tenants, api_process_rank(engine_client.vllm_config))
        else:
            check_api_servers(args.api_server_count, config)
            state.acm_identifier = open_identifier(config)


def _replace_health(app: FastAPI) -> None:
    """vLLM's GET /health, with a body."""
    for route in [r for r in app.routes if isinstance(r, APIRoute) and r.path == HEALTH_PATH and "GET" in r.methods]:
        app.router.add_api_route(
            HEALTH_PATH,
            health_route(route.endpoint),
            methods=["GET"],
            summary="Whether the server can answer",
            tags=route.tags,
            response_model=None,
        )


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
                responses=documented(COMPACT_PATH, {}),
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
    set_signature(endpoint, extended_signature(core))
    return endpoint


async def _close(app: FastAPI) -> None:
    """The updates of context maps end with the server. The sessions' file gets what it lacks."""
    incoming: IncomingRequests | None = getattr(app.state, "acm_incoming", None)
    if incoming is not None:
        incoming.close()
    server: ContextServer | None = getattr(app.state, "acm_server", None)
    if server is not None:
        await server.maps.close()
        server.store.close()


def _has_connector(args: Namespace) -> bool:
    config = args.kv_transfer_config
    return config is not None and config.kv_connector in CONNECTOR_NAMES
