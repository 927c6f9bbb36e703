"""Blocks of the vendor's servers on vLLM's own routes without an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from acmserve.server.app.paths import COUNT_PATH, MESSAGES_PATH
from acmserve.validation import MAX_JSON_DEPTH
from tests.support.routes.vendor_app import Handler, make_editor, tell_errors, vendor_client
from tests.support.server.acm_app import FirstSentence


@pytest.fixture
def client() -> TestClient:
    client = vendor_client(Handler(), make_editor(FirstSentence()))
    assert isinstance(client.app, FastAPI)
    tell_errors(client.app)
    return TestClient(client.app, raise_server_exceptions=False)


def body(depth: int) -> bytes:
    nested: Any = json.loads("[" * depth + "]" * depth)
    block = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": nested}
    messages = [{"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}]
    return json.dumps({"model": "m", "max_tokens": 5, "messages": messages}).encode()


@pytest.mark.parametrize("path", [MESSAGES_PATH, COUNT_PATH])
def test_a_block_nested_too_deeply_is_refused_with_the_limit(client: TestClient, path: str) -> None:
    """It was answered with 500. Deeper bodies than these are refused by the parser."""
    headers = {"content-type": "application/json"}
    assert client.post(path, content=body(MAX_JSON_DEPTH - 1), headers=headers).status_code == 200
    for depth in (700, MAX_JSON_DEPTH):
        answer = client.post(path, content=body(depth), headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["type"] == "error"
        assert f"nested deeper than {MAX_JSON_DEPTH} levels" in answer.json()["error"]["message"]
