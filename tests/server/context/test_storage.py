"""Routes and chats over a store with a file, in an app without an engine: what memory has not, and what is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import StorageFailed
from acmserve.server.app.paths import CHAT_PATH
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served_prompts import ServedContexts
from tests.server.chat.test_walk import Chats
from tests.support.context.states import archive_of
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


def branch_of(client: TestClient, server: ContextServer) -> str:
    """A branch that the file has. Two sessions fit into memory."""
    client.post(SESSIONS, json={"session_id": "main", "messages": HISTORY}).raise_for_status()
    asked = {"description": "find the port", "prompt": "Which port?"}
    made = client.post(f"{SESSIONS}/main/branches", json=asked).raise_for_status().json()
    return str(made["branch_id"])


def fill_disk(server: ContextServer, monkeypatch: pytest.MonkeyPatch, *writes: str) -> Callable[[], None]:
    """The file refuses these writes. Returns what frees the disk."""

    def refuse(*_: Any) -> None:
        raise StorageFailed("sessions.sqlite3", "full", "cannot grow: the disk is full", "Free some space.")

    for name in writes:
        monkeypatch.setattr(archive_of(server.store), name, refuse)
    return monkeypatch.undo


@pytest.mark.parametrize("is_parent_saved", [False, True], ids=["nothing is written", "the parent is"])
def test_a_branch_returns_on_a_full_disk_and_says_so(
    server: ContextServer, client: TestClient, monkeypatch: pytest.MonkeyPatch, is_parent_saved: bool
) -> None:
    branch = branch_of(client, server)
    free = fill_disk(server, monkeypatch, "drop", "empty_log", *(() if is_parent_saved else ("save",)))
    answer = client.post(f"{SESSIONS}/main/branches/{branch}/return", json={"message": "8000."})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["branch_id"], told["state"], told["message"]) == (branch, "returned", "8000.")
    assert (told["storage"]["saved"], told["storage"]["reason"]) == (False, "full")
    assert ("bring removed text back" in told["storage"]["warning"]) is not is_parent_saved
    assert (f"delete the session '{branch}' again" in told["storage"]["warning"]) is is_parent_saved
    assert client.get(f"{SESSIONS}/main/context").json()["messages"][-1]["message"]["content"] == "8000."
    assert client.get(f"{SESSIONS}/{branch}").status_code == 404
    free()
    assert client.delete(f"{SESSIONS}/{branch}").status_code == 204
    fold(client, "main")
    assert client.get(f"{SESSIONS}/main").json()["storage"] is None
    server.store.check_integrity()


def test_a_branch_that_the_file_still_holds_is_deleted_again(
    server: ContextServer, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = branch_of(client, server)
    url = f"{SESSIONS}/main/branches/{branch}"
    free = fill_disk(server, monkeypatch, "drop", "empty_log")
    for _ in range(2):
        refused = client.delete(url)
        assert refused.status_code == 503
        assert f"The session '{branch}' is deleted, but" in refused.json()["error"]["message"]
        assert client.get(f"{SESSIONS}/{branch}").status_code == 404
    free()
    assert client.delete(url).status_code == 204
    assert client.delete(url).status_code == 404
