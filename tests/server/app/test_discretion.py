"""What a server keeps to itself: no answer names a path of its machine, and its log has ids, never text."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import http
from tests.support.server.bad_requests import BAD_REQUESTS
from tests.support.server.scripted_server import MODEL

ROOT = Path(__file__).parents[3]
PLAIN = {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
JSON = {"Content-Type": "application/json"}

CANARY = "cormorant-" + uuid.uuid4().hex


def paths_of(folder: Path) -> list[str]:
    """What of this machine an answer could give away."""
    return [str(path) for path in (folder, ROOT, Path(sys.prefix), Path.home()) if len(str(path)) > 1]


WRONG_ROUTES: list[tuple[str, str, bytes]] = [
    ("POST", "/v1/chat/completions", b'{"model": '),
    ("POST", "/v1/chat/completions", b"\xff\xfe\x00"),
    ("POST", "/v1/chat/completions", b'{"model": "other", "messages": []}'),
    ("POST", "/v1/chat/completions", b'{"session_id": "s", "messages": [{"role": 7}]}'),
    ("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": -1}'),
    ("POST", "/v1/messages", b'{"messages": 4}'),
    ("POST", "/v1/responses", b'{"input": {}}'),
    ("GET", "/v1/acm/sessions/none", b""),
    ("POST", "/v1/acm/sessions", b'{"session_id": 4}'),
    ("POST", "/v1/acm/sessions/none/edits", b'{"edits": []}'),
    ("POST", "/v1/acm/sessions/none/tools/none", b'{"arguments": {}}'),
    ("PUT", "/v1/acm/maps/none", b'{"max_items": "x"}'),
    ("GET", "/v1/acm/maps/none/text", b""),
    ("GET", "/v1/acm/nothing", b""),
]


@pytest.mark.parametrize(("method", "path", "body"), WRONG_ROUTES)
def test_a_refusal_names_no_path(
    scripted_server: str, scripted_folder: Path, method: str, path: str, body: bytes
) -> None:
    answer = http._ask(method, scripted_server + path, content=body, headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text
    assert [place for place in paths_of(scripted_folder) if place in answer.text] == []


def test_no_bad_field_brings_a_path(scripted_server: str, scripted_folder: Path) -> None:
    url = f"{scripted_server}/v1/chat/completions"
    for fields, headers, field in BAD_REQUESTS:
        body = json.dumps(PLAIN | fields).encode()
        answer = http.post(url, content=body, headers=JSON | headers)
        assert 400 <= answer.status_code < 500, (field, answer.text)
        assert [place for place in paths_of(scripted_folder) if place in answer.text] == [], field


def test_an_answer_and_its_receipt_name_no_path(scripted_server: str, scripted_folder: Path) -> None:
    body = PLAIN | {"session_id": uuid.uuid4().hex, "acm": {"fidelity": "auto"}}
    answer = http.post(f"{scripted_server}/v1/chat/completions", json=body)
    assert answer.json()["acm"]["receipt"]["prompt_tokens"] > 0
    assert [place for place in paths_of(scripted_folder) if place in answer.text] == []


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_log_has_no_text(scripted_server: str, scripted_folder: Path) -> None:
    """The canary is in messages, answers, calls, queries, summaries, edits, maps and refused requests."""
    session, chats = uuid.uuid4().hex, f"{scripted_server}/v1/chat/completions"
    place = f"{scripted_server}/v1/acm/sessions/{session}"
    script = [_call("search_context", query=CANARY), _call("no_such_tool", text=CANARY), f"I saw {CANARY}."]
    xargs = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": script}}
    said = [{"role": "system", "content": CANARY}, {"role": "user", "content": f"Find {CANARY} in {CANARY}."}]
    asked = {"model": MODEL, "messages": said, "max_tokens": 200, "session_id": session, "acm": {"tools": "sculptor"}}
    assert http.post(chats, json=asked | xargs).status_code == 200
    edits = [{"op": "summarize", "messages": {"start": 1, "end": 2}, "summary": CANARY}]
    answers = [
        http.post(f"{place}/edits", json={"edits": edits}),
        http.post(f"{place}/edits", json={"edits": [{"op": CANARY}]}),
        http.post(f"{place}/tools/search_context", json={"arguments": {"query": CANARY}}),
        http.post(f"{place}/tools/search_context", json={"arguments": {CANARY: CANARY}}),
        http.post(chats, json=asked | {"messages": [{"role": CANARY}]}),
        http.post(chats, json=asked | {"acm": {CANARY: 1}}),
        http.post(chats, json=asked | {"session_id": CANARY * 20}),
        http.put(f"{scripted_server}/v1/acm/maps/{session}", json={CANARY: 1}),
        http.post(chats, content=f'{{"{CANARY}"'.encode(), headers=JSON),
    ]
    assert {answer.status_code for answer in answers} <= {200, 400, 404, 409, 422}
    assert any(CANARY in answer.text for answer in answers), "the control: the server had it in its hands"
    log = (scripted_folder / "server.log").read_text(errors="replace")
    assert "POST /v1/chat/completions" in log
    assert CANARY not in log
