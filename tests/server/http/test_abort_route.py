"""Requests of others are not ended by their ids: several API keys, and a route that knows none of them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from vllm.config import KVTransferConfig
from vllm.entrypoints.anthropic.api_router import attach_router as attach_anthropic_routes
from vllm.entrypoints.generate.api_router import register_generate_api_routers

from acmserve.engine.config import CONNECTOR_NAME
from acmserve.errors import AcmError
from acmserve.server.app.endpoint import create
from acmserve.server.app.paths import MESSAGES_PATH

PATHS = ("/inference/v1/abort_requests", "/abort_requests")
OFF = "/v1/off/abort_requests"
ASKED = {"request_ids": ["chatcmpl-job-17"]}


@pytest.fixture(scope="module")
def theirs() -> FastAPI:
    """VLLM's routes, and stand-ins for those that end requests. One is turned off."""
    app = FastAPI()
    register_generate_api_routers(app)
    if not any(getattr(route, "path", "") == MESSAGES_PATH for route in app.routes):
        attach_anthropic_routes(app)
    for path in (*PATHS, OFF):
        app.add_api_route(path, lambda: "theirs", methods=["POST"], include_in_schema=path != OFF)
    return app


def answers(theirs: FastAPI, keys: list[str] | None) -> list[Any]:
    app = FastAPI()
    app.router.routes.extend(theirs.router.routes)
    config = KVTransferConfig(kv_connector=CONNECTOR_NAME, kv_role="kv_both")
    app.state.args = Namespace(kv_transfer_config=config, api_server_count=1, api_key=keys)
    create().attach_router(app)
    client = TestClient(app)
    return [client.post(path, json=ASKED) for path in (*PATHS, OFF)]


@pytest.mark.parametrize("keys", [None, ["a"], ["a", "a"]], ids=["no key", "one key", "one key twice"])
def test_with_one_key_vllm_ends_requests(theirs: FastAPI, keys: list[str] | None) -> None:
    assert [answer.json() for answer in answers(theirs, keys)] == ["theirs"] * 3


def test_with_several_keys_nobody_ends_a_request_by_its_id(theirs: FastAPI) -> None:
    """A client that named its request with `X-Request-Id` had it ended by whoever guessed the name."""
    *refused, off = answers(theirs, ["a", "b"])
    assert [answer.status_code for answer in refused] == [403, 403]
    assert "Close the connection" in refused[0].json()["error"]["remedy"]
    assert off.json() == "theirs", "vLLM has turned that one off, and says so"


def test_with_several_keys_there_is_no_store_of_responses(theirs: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin says so where `vllm serve` was started, too."""
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
    assert [answer.json() for answer in answers(theirs, ["a"])] == ["theirs"] * 3
    with pytest.raises(AcmError, match="several keys"):
        answers(theirs, ["a", "b"])
