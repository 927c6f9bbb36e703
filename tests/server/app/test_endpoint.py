"""The plugin on vLLM's own routes, without an engine: vLLM's route functions run, its handlers are stand-ins."""

from __future__ import annotations

import inspect
from argparse import Namespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.testclient import TestClient
from vllm.config import KVTransferConfig
from vllm.entrypoints.generate.api_router import register_generate_api_routers
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.serve.engine.protocol import UsageInfo

from acmserve.engine.config import CONNECTOR_NAME
from acmserve.errors import EngineMismatch
from acmserve.server.app.endpoint import create
from acmserve.server.app.paths import PATHS
from acmserve.server.exchange.exchange import CURRENT

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
    for path, ours in post_routes(app).items():
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
