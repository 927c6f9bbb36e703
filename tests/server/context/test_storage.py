"""Routes and chats over a store with a file, in an app without an engine: what memory has not, and what is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.server.app.paths import CHAT_PATH
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served_prompts import ServedContexts
from tests.server.chat.test_walk import Chats
from tests.support.routes.vendor_app import make_editor, vendor_client
from tests.support.server.acm_app import HISTORY, SESSIONS, FirstSentence, OutOfReach, Words, make_client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ContextServer]:
    words = Words()
    store = SessionStore(SessionLimits(max_sessions=2), Archive(tmp_path))
    yield ContextServer(store, words, FirstSentence(), OutOfReach(), ServedContexts(words))
    store.close()


@pytest.fixture
def client(server: ContextServer) -> TestClient:
    return make_client(server)


def fold(client: TestClient, session_id: str) -> None:
    edits = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    assert client.post(f"{SESSIONS}/{session_id}/edits", json=edits).status_code == 200


def test_a_fold_survives_sprayed_sessions(server: ContextServer, client: TestClient) -> None:
    client.post(SESSIONS, json={"session_id": "mine", "messages": HISTORY})
    fold(client, "mine")
    for number in range(20):
        client.post(SESSIONS, json={"session_id": f"sprayed-{number}"})
    assert len(server.store) == 2
    listed = {info["session_id"]: info for info in client.get(SESSIONS, params={"limit": 100}).json()["data"]}
    assert (listed["mine"]["num_messages"], listed["mine"]["num_hidden_fragments"]) == (4, 1)
    shown = client.get(f"{SESSIONS}/mine/context").json()
    assert shown["fragments"][0]["state"] == "folded"
    assert client.get(f"{SESSIONS}/mine").json() == listed["mine"] | {"used_at": pytest.approx(0, abs=1e12)}


def test_branches_in_the_file_are_found_and_deleted_with_their_parent(
    server: ContextServer, client: TestClient
) -> None:
    client.post(SESSIONS, json={"session_id": "parent", "messages": HISTORY})
    for number in range(4):
        made = client.post(f"{SESSIONS}/parent/branches", json={"description": f"d{number}", "prompt": "p"})
        assert made.status_code == 201
    assert len(client.get(f"{SESSIONS}/parent/branches").json()["data"]) == 4
    redact = {"edits": [{"op": "redact", "messages": {"start": 0, "end": 1}}]}
    assert client.post(f"{SESSIONS}/parent/edits", json=redact).status_code == 409
    assert client.delete(f"{SESSIONS}/parent").status_code == 204
    assert client.get(SESSIONS).json()["data"] == []
    server.store.check_integrity()


def test_what_is_kept_beside_a_session_leaves_with_it(server: ContextServer, client: TestClient) -> None:
    client.post(SESSIONS, json={"session_id": "a", "messages": HISTORY})
    session = server.store.get("", "a")
    served = server.served.of("", "a")
    server.budgets.meter(session)
    for number in range(3):
        client.post(SESSIONS, json={"session_id": f"s{number}"})
    assert ("", "a") not in server.budgets._meters
    assert server.served.of("", "a") is served, "the engine may still have its KV"
    client.delete(f"{SESSIONS}/a")
    assert server.served.of("", "a") is not served


def test_a_damaged_session_is_503_without_a_path(server: ContextServer, client: TestClient, tmp_path: Path) -> None:
    for session_id in ("a", "b", "c"):
        client.post(SESSIONS, json={"session_id": session_id, "messages": HISTORY})
    other = sqlite3.connect(tmp_path / "sessions.sqlite3")
    other.execute("UPDATE entries_1 SET data = x'7b'")
    other.commit()
    other.close()
    refused = client.get(f"{SESSIONS}/a")
    assert refused.status_code == 503
    assert "damaged copy of session 'a'" in refused.json()["error"]["message"]
    assert str(tmp_path) not in refused.text
    assert client.get(f"{SESSIONS}/b").status_code == 200


def test_an_answer_that_is_too_large_to_be_recorded_is_delivered(client: TestClient) -> None:
    handler = Chats()
    handler.engine = True
    chat = vendor_client(handler, make_editor(FirstSentence()))
    chat.app.state.acm_server.store.limits = SessionLimits(max_bytes=600)  # type: ignore[attr-defined]
    body = {"model": "m", "session_id": "s", "messages": [{"role": "user", "content": "x" * 800}]}
    answer = chat.post(CHAT_PATH, json=body)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Noted."
    assert answer.json()["acm"]["storage"]["reason"] == "refused"
    assert "would hold" in answer.json()["acm"]["storage"]["warning"]
