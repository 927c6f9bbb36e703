"""Every error of the `/v1/acm` routes: its status, the field it names, and a remedy. What is sent never makes a 5xx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from acmserve.server.http import strict_json
from acmserve.validation import MAX_JSON_DEPTH
from tests.support.server.acm_app import HISTORY, SESSIONS, make_app, make_client, make_server

USER = {"role": "user", "content": "x"}
DEEP = "[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1)
JSON = {"content-type": "application/json"}


@pytest.fixture
def client() -> TestClient:
    client = make_client()
    assert client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).status_code == 201
    return client


def error_of(answer: Any, status: int, param: str | None) -> dict[str, Any]:
    """The error of an answer, its shape checked."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code", "remedy"}
    assert (error["code"], error["param"]) == (status, param), error
    assert len(error["remedy"]) > 10
    assert error["message"]
    assert error["type"].endswith("Error")
    return error


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"session_id": ""}, "session_id", "at least 1"),
        ({"session_id": "x" * 257}, "session_id", "at most 256"),
        ({"session_id": 7}, "session_id", "7 is not allowed"),
        ({"suite": "other"}, "suite", "'sculptor-v1'"),
        ({"message": []}, "message", "not a field"),
        ({"messages": "hi"}, "messages", "'hi'"),
        ({"messages": [USER, 3]}, "messages[1]", "3"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": ""}]}, "messages[0].role", "at least 1"),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content", "string; or"),
        ({"messages": [{"role": "user", "content": ["x", 5]}]}, "messages[0].content[1]", "5"),
        ({"messages": [{"role": "a", "tool_calls": [3]}]}, "messages[0].tool_calls[0]", "3"),
        (
            {"messages": [{"role": "a", "tool_calls": [{"function": None}]}]},
            "messages[0].tool_calls[0].function",
            "None",
        ),
        ([], None, "[]"),
        ("text", None, "'text'"),
    ],
)
def test_a_session_that_cannot_be_made(client: TestClient, body: Any, param: str | None, says: str) -> None:
    error = error_of(client.post(SESSIONS, json=body), 400, param or "body")
    assert says in error["message"]


def test_too_many_messages(client: TestClient) -> None:
    answer = client.post(SESSIONS, json={"messages": [USER] * 65_537})
    assert "65536" in error_of(answer, 400, "messages")["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "edits"),
        ({"edits": []}, "edits"),
        ({"edits": [{"op": "fold"}]}, "edits[0].fragment_id"),
        ({"edits": [{"op": "fold", "fragment_id": "f", "messages": {"start": 0, "end": 1}}]}, "edits[0].fragment_id"),
        ({"edits": [{"fragment_id": "f"}]}, "edits[0].op"),
        ({"edits": [{"op": "burn", "fragment_id": "f"}]}, "edits[0].op"),
        ({"edits": [{"op": "fold", "fragment_id": "f" * 65}]}, "edits[0].fragment_id"),
        ({"edits": [{"op": "fold", "messages": {"start": 0}}]}, "edits[0].messages.end"),
        ({"edits": [{"op": "fold", "messages": {"start": -1, "end": 1}}]}, "edits[0].messages.start"),
        ({"edits": [{"op": "fold", "messages": {"start": 0, "end": 10**30}}]}, "edits[0].messages.end"),
        ({"edits": [{"op": "fold", "messages": {"start": 2, "end": 9}}]}, "edits[0].messages"),
        ({"edits": [{"op": "fold", "messages": {"start": 2, "end": 2}}]}, "edits[0].messages"),
        ({"edits": [{"op": "fold", "messages": {"start": 1, "end": 2, "step": 1}}]}, "edits[0].messages.step"),
        ({"edits": [{"op": "restore", "messages": {"start": 1, "end": 2}}]}, "edits[0].messages"),
        ({"edits": [{"op": "summarize", "messages": {"start": 1, "end": 2}, "focus": ""}]}, "edits[0].focus"),
        ({"edits": [{"op": "summarize", "messages": {"start": 1, "end": 2}, "focus": "x" * 201}]}, "edits[0].focus"),
        ({"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}], "fidelity": "fast"}, "fidelity"),
    ],
)
def test_edits_that_cannot_be_made(client: TestClient, body: dict[str, Any], param: str) -> None:
    before = client.get(f"{SESSIONS}/s/context").json()
    error_of(client.post(f"{SESSIONS}/s/edits", json=body), 400, param)
    assert client.get(f"{SESSIONS}/s/context").json() == before


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("edits", {"edits": [{"op": "fold", "fragment_id": "f00000"}]}, "edits[0].fragment_id"),
        ("tools/no_such_tool", {}, "name"),
        ("tools/summary_fragment", {"suite": "sculptor"}, "name"),
    ],
)
def test_what_does_not_exist_in_a_session(client: TestClient, path: str, body: Any, param: str) -> None:
    error_of(client.post(f"{SESSIONS}/s/{path}", json=body), 404, param)


def test_a_fold_that_saves_nothing_is_a_conflict(client: TestClient) -> None:
    edits = [{"op": "fold", "messages": {"start": 0, "end": 1}}]
    answer = client.post(f"{SESSIONS}/s/edits", json={"edits": edits})
    assert "save nothing" in error_of(answer, 409, "edits[0].messages")["message"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/context", None),
        ("POST", "/tools/fold_fragment", {}),
        ("POST", "/edits", {"edits": [{"op": "fold", "fragment_id": "f"}]}),
    ],
)
def test_a_session_that_does_not_exist(client: TestClient, method: str, path: str, body: Any) -> None:
    error = error_of(client.request(method, f"{SESSIONS}/other{path}", json=body), 404, "session_id")
    assert "'other'" in error["message"]


@pytest.mark.parametrize("arguments", [[1], 3, True])
def test_arguments_that_are_neither_object_nor_text(client: TestClient, arguments: Any) -> None:
    answer = client.post(f"{SESSIONS}/s/tools/search_context", json={"arguments": arguments})
    assert "JSON text" in error_of(answer, 400, "arguments")["remedy"]


@pytest.mark.parametrize(
    ("params", "param"),
    [({"limit": 0}, "limit"), ({"limit": "x"}, "limit"), ({"limit": 1001}, "limit"), ({"after": ""}, "after")],
)
def test_a_page_that_cannot_be_shown(client: TestClient, params: dict[str, Any], param: str) -> None:
    error_of(client.get(SESSIONS, params=params), 400, param)


def test_a_page_behind_a_session_that_is_gone(client: TestClient) -> None:
    error_of(client.get(SESSIONS, params={"after": "gone"}), 404, "after")


def test_a_suite_that_does_not_exist(client: TestClient) -> None:
    assert "sculptor-v1" in error_of(client.get("/v1/acm/tools?suite=v3"), 400, "suite")["remedy"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("x" * 257, "at most 256"),
        ("%ED%A0%80", "unicode"),
        ("%FF", "unicode"),
    ],
)
def test_an_id_in_the_path_that_is_none(client: TestClient, path: str, says: str) -> None:
    assert says in error_of(client.get(f"{SESSIONS}/{path}"), 400, "session_id")["message"].lower()


def test_a_salt_that_is_too_long(client: TestClient) -> None:
    error_of(client.get(SESSIONS, headers={"x-cache-salt": "x" * 1025}), 400, "x-cache-salt")


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"{", "body", "not valid JSON"),
        (b"\xff\xfe\x00", "body", "not valid JSON"),
        (b'{"suite": "\xff"}', "body", "not valid JSON"),
        (b"[" * 200_000, "body", "deep"),
        (b"1" * 5_000, "body", "not valid JSON"),
        (b'{"messages": [{"role": "user", "score": NaN}]}', "messages[0].score", "nan"),
        (b'{"messages": [{"role": "user", "score": -1e999}]}', "messages[0].score", "inf"),
        (b'{"session_id": "\\ud800"}', "session_id", "surrogate"),
        (b'{"messages": [{"role": "user", "\\udfff": 1}]}', "messages[0]", "surrogate"),
        (
            f'{{"messages": [{{"role": "user", "x": {DEEP}}}]}}'.encode(),
            f"messages[0].x{'[0]' * 20}"[:57] + "...",
            "deep",
        ),
    ],
)
def test_a_body_that_is_no_json(client: TestClient, body: bytes, param: str, says: str) -> None:
    answer = client.post(SESSIONS, content=body, headers=JSON)
    error = error_of(answer, 400, param)
    assert says in error["message"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "\u00ff"])
def test_a_body_that_is_not_declared_as_json(client: TestClient, kind: str) -> None:
    answer = client.post(SESSIONS, content=b"{}", headers={"content-type": kind.encode("latin-1")})
    assert "application/json" in error_of(answer, 415, "Content-Type")["remedy"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
def test_json_by_other_names(client: TestClient, kind: str) -> None:
    assert client.post(SESSIONS, content=b"{}", headers={"content-type": kind}).status_code == 201


def chunks() -> Iterator[bytes]:
    """A body whose length is not declared."""
    yield b'{"session_id": "'
    for _ in range(20):
        yield b"x" * 100
    yield b'"}'


@pytest.mark.parametrize("content", [b"".join(chunks()), chunks()])
def test_a_body_over_the_limit(client: TestClient, content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "MAX_BODY_BYTES", 1_000)
    error = error_of(client.post(SESSIONS, content=content, headers=JSON), 413, "body")
    assert "1,000" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/sessions", "GET, POST"),
        ("PATCH", "/sessions/s", "DELETE, GET"),
        ("GET", "/sessions/s/edits", "POST"),
        ("GET", "/sessions/s/tools/fold_fragment", "POST"),
        ("DELETE", "/tools", "GET"),
        ("OPTIONS", "/tools", "GET"),
    ],
)
def test_a_method_that_a_route_does_not_have(client: TestClient, method: str, path: str, allow: str) -> None:
    answer = client.request(method, f"/v1/acm{path}")
    assert allow in error_of(answer, 405, "method")["remedy"]
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize("path", ["/", "/session", "/sessions/", "/sessions/a/b", "/sessions/s/context/", "/tools/x"])
def test_a_path_that_no_route_has(client: TestClient, path: str) -> None:
    error = error_of(client.get(f"/v1/acm{path}"), 404, "path")
    assert "/v1/acm/sessions/{session_id}/context" in error["remedy"]
    assert "%2F" in error["remedy"]


def test_a_summary_model_that_is_down_leaves_everything_as_it_was() -> None:
    client = make_client(make_server(down=True))
    client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY})
    edits = [
        {"op": "fold", "messages": {"start": 3, "end": 4}},
        {"op": "summarize", "messages": {"start": 1, "end": 2}},
    ]
    before = client.get(f"{SESSIONS}/s/context").json()
    answer = client.post(f"{SESSIONS}/s/edits", json={"edits": edits})
    assert "connection refused" in error_of(answer, 503, None)["message"]
    assert client.get(f"{SESSIONS}/s/context").json() == before


def test_a_tool_call_while_the_summary_model_is_down() -> None:
    client = make_client(make_server(down=True))
    client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY})
    arguments = {"start_marker": "alpha 0", "end_marker": "alpha 9 ", "num_fragments": 1}
    cut = client.post(f"{SESSIONS}/s/tools/fragment_context", json={"arguments": arguments}).json()
    arguments = {"fragment_id": cut["fragment_ids"][0], "focus": "names"}
    error_of(client.post(f"{SESSIONS}/s/tools/summarize_fragment", json={"arguments": arguments}), 503, None)


def test_an_embedder_that_is_not_there_is_a_result_for_the_model() -> None:
    client = make_client(make_server(down=True))
    client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY, "suite": "sculptor-v1"})
    arguments = json.dumps({"query": "alpha", "mode": "semantic"})
    answer = client.post(f"{SESSIONS}/s/tools/search_context", json={"arguments": arguments})
    assert answer.json().items() >= {"is_error": True, "changed": False}.items()
    assert "Search exactly" in answer.json()["result"]


def test_a_session_grown_too_large_by_a_call_keeps_its_old_state() -> None:
    client = make_client(make_server(max_bytes=5_000))
    assert client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).status_code == 201
    arguments = {"start_marker": "alpha 0", "end_marker": "alpha 39 ", "num_fragments": 20}
    for _ in range(2):
        answer = client.post(f"{SESSIONS}/s/tools/fragment_context", json={"arguments": arguments})
        error_of(answer, 409, "session_id")
        assert client.get(f"{SESSIONS}/s/context").json()["fragments"] == []


async def leave_early() -> list[dict[str, Any]]:
    """A client that goes away in the middle of its body."""
    app, sent = make_app(), []
    scope = {"type": "http", "method": "POST", "path": SESSIONS, "query_string": b"", "headers": [], "app": app}
    received = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def test_a_client_that_leaves_early_is_no_error_of_ours() -> None:
    assert asyncio.run(leave_early())[0]["status"] == 400
