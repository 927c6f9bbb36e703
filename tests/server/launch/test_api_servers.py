"""One API server keeps the transcripts. Several keep none, say so, and refuse what would need them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from acmserve.errors import AcmError
from acmserve.server.app.launch.api_servers import settle_api_servers
from acmserve.server.app.serve import main, parse_vllm_flags
from acmserve.server.options.config import ContextConfig
from acmserve.server.routes.router import router_without_sessions

OTHERS: dict[type, Any] = {str: "x", int: 7, float: 7.5, bool: True}


def settled(config: ContextConfig | None = None, *flags: str) -> tuple[Namespace, list[str]]:
    said: list[str] = []
    args = parse_vllm_flags(["/models/m", *flags])
    settle_api_servers(args, config or ContextConfig(), said.append)
    return args, said


def test_one_server_stands_in_front_of_several_engines() -> None:
    """Where nothing is said, vLLM would start one for each engine."""
    assert parse_vllm_flags(["/models/m", "--data-parallel-size", "2"]).api_server_count is None
    args, (said,) = settled(None, "--data-parallel-size", "2")
    assert args.api_server_count == 1
    assert "one API server in front of 2 engines" in said
    args, said_of_one = settled()
    assert (args.api_server_count, said_of_one) == (1, [])
    args, _ = settled(None, "--headless")
    assert args.api_server_count is None, "it starts none"


def test_several_servers_refuse_every_setting_that_they_would_pass_over() -> None:
    free, refused = set(), {}
    for each in fields(ContextConfig):
        config = ContextConfig(**{each.name: OTHERS[type(each.default)]})
        flag = f"--{each.name.replace('_', '-')}"
        assert settled(config, "--api-server-count", "1")[1] == []
        try:
            _, said = settled(config, "--api-server-count", "2")
        except AcmError as error:
            refused[flag] = str(error)
        else:
            free.add(flag)
            assert "2 API servers keep no transcripts" in said[0]
    for flag, error in refused.items():
        assert error.startswith(f"{flag} needs transcripts, and 2 API servers keep none. Leave out")
    prefixes = {"--share-prefixes", "--session-from", "--log-format", "--max-sessions"}
    assert free == prefixes | {"--summary-model", "--summary-url", "--max-summary-tokens"}


def test_the_start_is_refused_in_one_line(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    flags = ["--port", "0", "--dtype", "float32", "--api-server-count", "2", "--budget", "80k"]
    with pytest.raises(AcmError, match="--budget needs transcripts"):
        main([str(tmp_path), *flags])


def test_a_route_that_is_off_says_why() -> None:
    app = FastAPI(openapi_url=None)
    app.include_router(router_without_sessions(2))
    answer = TestClient(app).get("/v1/acm/sessions/s/context")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert "2 API servers keep no transcripts" in error["message"]
    assert "--api-server-count" in error["remedy"]
