"""The plugin on vLLM's own routes, without an engine: vLLM's route functions run, its handlers are stand-ins."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.testclient import TestClient
from vllm.config import KVTransferConfig
from vllm.entrypoints.generate.api_router import register_generate_api_routers
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse
from vllm.entrypoints.serve.engine.protocol import UsageInfo

from acmserve.context.storage.session import Session
from acmserve.engine.config import CONNECTOR_NAME
from acmserve.errors import EngineMismatch
from acmserve.plan.request import SessionParams
from acmserve.server.app.endpoint import create
from acmserve.server.app.paths import PATHS
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from tests.support.server.acm_app import HISTORY, SESSIONS, make_client, make_server

CHAT = "/v1/chat/completions"


class Chat:
    """Stands in for vLLM's chat handler: answers with the receipt that the engine would have given."""

    async def create_chat_completion(self, request: ChatCompletionRequest, raw_request: Any) -> ChatCompletionResponse:
        exchange = CURRENT.get()
        if exchange is not None:
            exchange.acm = {"session_id": exchange.params.session_id, "receipt": {}}
        return ChatCompletionResponse(id="c", created=1, model="m", choices=[], usage=UsageInfo())


def vllm_app(connector: str | None) -> FastAPI:
    app = FastAPI()
    config = connector and KVTransferConfig(kv_connector=connector, kv_role="kv_both")
    app.state.args = Namespace(kv_transfer_config=config)
    app.state.openai_serving_chat = Chat()
    register_generate_api_routers(app)
    return app


def post_routes(app: FastAPI) -> dict[str, APIRoute]:
    """By path. No two answer the same."""
    found = [r for r in app.routes if isinstance(r, APIRoute) and r.path in PATHS and "POST" in r.methods]
    by_path = {route.path: route for route in found}
    assert len(by_path) == len(found)
    return by_path


def parameters(route: APIRoute) -> list[inspect.Parameter]:
    return list(inspect.signature(route.endpoint).parameters.values())


def post(app: FastAPI, body: dict[str, Any]) -> httpx.Response:
    with TestClient(app) as client:
        answer: httpx.Response = client.post(CHAT, json={"model": "m", "messages": []} | body)
    return answer


def test_routes_keep_the_signature_and_the_checks_of_vllm() -> None:
    app = vllm_app(CONNECTOR_NAME)
    create().attach_router(app)
    cores = post_routes(vllm_app(CONNECTOR_NAME))
    found = post_routes(app)
    assert found.keys() == cores.keys() != set()
    for path, ours in found.items():
        core = cores[path]
        for mine, theirs in zip(parameters(ours), parameters(core), strict=True):
            assert (mine.name, mine.kind, mine.default) == (theirs.name, theirs.kind, theirs.default)
            assert issubclass(mine.annotation, theirs.annotation)
        assert ours.dependencies == core.dependencies
        assert ours.responses.keys() == core.responses.keys()
        assert ours.endpoint is not core.endpoint


@pytest.mark.parametrize("connector", [None, "ExampleConnector"])
def test_engine_without_our_connector_keeps_vllms_routes(connector: str | None) -> None:
    app = vllm_app(connector)
    create().attach_router(app)
    assert {path: r.endpoint for path, r in post_routes(app).items()} == {
        path: r.endpoint for path, r in post_routes(vllm_app(connector)).items()
    }


def test_vllm_without_the_routes_is_refused_by_name() -> None:
    app = FastAPI()
    app.state.args = vllm_app(CONNECTOR_NAME).state.args
    with pytest.raises(EngineMismatch, match=CHAT):
        create().attach_router(app)


def test_answer_without_session_is_byte_for_byte_that_of_vllm() -> None:
    plain, ours = vllm_app(None), vllm_app(CONNECTOR_NAME)
    create().attach_router(ours)
    expected, answer = post(plain, {}), post(ours, {})
    assert answer.content == expected.content
    assert answer.headers == expected.headers


def test_answer_with_session_is_that_of_vllm_and_acm() -> None:
    app = vllm_app(CONNECTOR_NAME)
    create().attach_router(app)
    expected = post(vllm_app(None), {}).json()
    assert post(app, {"session_id": "s"}).json() == expected | {"acm": {"session_id": "s", "receipt": {}}}


class Completions:
    """Stands in for vLLM's handler of completions: a request is sent when `engine` lets it, and gets its receipt."""

    def __init__(self, engine: Callable[[], None] = lambda: None) -> None:
        self.sent: list[SessionParams] = []
        self._engine = engine

    async def create_completion(self, request: CompletionRequest, raw_request: Any) -> CompletionResponse:
        exchange = CURRENT.get()
        assert exchange is not None
        self._engine()
        exchange.send(request.to_sampling_params(1, {}))
        self.sent.append(exchange.params)
        assert exchange.on_receipt is None or exchange.params.forget
        if exchange.on_receipt is not None:
            exchange.on_receipt({}, 0.0)
        return CompletionResponse(id="c", created=1, model="m", choices=[], usage=UsageInfo())


def complete(server: ContextServer, handler: Completions, session: str = "s", **acm: Any) -> SessionParams:
    app = vllm_app(CONNECTOR_NAME)
    app.state.openai_serving_completion, app.state.acm_server = handler, server
    create().attach_router(app)
    with TestClient(app) as client:
        params = {"acm": {"session_id": session, "fidelity": "reuse", **acm}}
        body = {"model": "m", "prompt": [1, 2], "max_tokens": 1, "kv_transfer_params": params}
        client.post("/v1/completions", json=body).raise_for_status()
    return handler.sent[-1]


def held_session() -> tuple[ContextServer, Session]:
    server = make_server()
    make_client(server).post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).raise_for_status()
    return server, server.store.get("", "s")


def redact(server: ContextServer, session: str = "s") -> None:
    body = {"edits": [{"op": "redact", "messages": {"start": 1, "end": 2}}]}
    make_client(server).post(f"{SESSIONS}/{session}/edits", json=body).raise_for_status()


def test_a_request_that_vllm_answers_by_itself_carries_a_redaction() -> None:
    """Nobody cuts the text out of what its client sends, so it becomes no source behind that."""
    server, session = held_session()
    completions = Completions()
    assert complete(server, completions) == SessionParams("s", "reuse")
    redact(server)
    background = complete(server, completions, fidelity="exact", precompute=True)
    assert not background.forget, "what is precomputed moves nothing, and acknowledges nothing"
    assert server.sessions.must_forget(session)
    assert complete(server, completions) == SessionParams("s", "reuse", forget=True, unrecorded=True)
    assert not server.sessions.must_forget(session), "the engine has acknowledged it"
    assert complete(server, completions) == SessionParams("s", "reuse", unrecorded=True)
    server.delete(session)
    assert complete(server, completions) == SessionParams("s", "reuse", forget=True)


def test_a_request_that_vllm_answers_by_itself_goes_by_the_name_of_the_parent_of_a_branch() -> None:
    """As a turn of the branch does: under another name it would carry no redaction, and find KV that nobody forgot."""
    server, _ = held_session()
    task = {"description": "look it up", "prompt": "What was read? Report the number."}
    branch = make_client(server).post(f"{SESSIONS}/s/branches", json=task).raise_for_status().json()["branch_id"]
    completions = Completions()
    assert complete(server, completions, branch) == SessionParams("s", "reuse")
    redact(server, branch)
    assert complete(server, completions, branch) == SessionParams("s", "reuse", forget=True, unrecorded=True)


def test_a_request_that_vllm_answers_by_itself_and_a_redaction_overtook_is_forgotten_too() -> None:
    server, session = held_session()

    def overtake() -> None:
        redact(server)
        server.sessions._removed.acknowledge(session.key, server.sessions._removed.num_removals)
        assert not server.sessions.must_forget(session)

    assert not complete(server, Completions(overtake)).forget
    assert server.sessions.must_forget(session)
