"""A real server whose sessions' file cannot be written: answers arrive, say so, and the file heals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support import http
from tests.support.server.faults import full_disk, locked_file
from tests.support.server.scripted_server import MODEL

SECRET = "the launch code is 0451"
MESSAGES = [{"role": "user", "content": SECRET}]
Fault = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def file(scripted_server: str, scripted_folder: Path) -> Path:
    return scripted_folder / "data" / "sessions.sqlite3"


@pytest.fixture(params=["locked", "full"])
def fault(request: pytest.FixtureRequest, file: Path, scripted_folder: Path) -> Fault:
    """What another process does to the file, or what the kernel refuses to the server."""
    pid = int((scripted_folder / "server.pid").read_text())
    return {"locked": lambda: locked_file(file), "full": lambda: full_disk(pid)}[request.param]


class Chat:
    """One session, by plain HTTP."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.name = f"storage-{uuid4().hex[:8]}"
        self.url = f"{server}/v1/acm/sessions/{self.name}"
        self.messages = list(MESSAGES)

    def ask(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "session_id": self.name, "messages": self.messages, "max_tokens": 8, **fields}
        return http.post(f"{self.server}/v1/chat/completions", json=body)

    def go_on(self, **fields: Any) -> Any:
        answer = self.ask(**fields)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        self.messages += [said["choices"][0]["message"], {"role": "user", "content": "And now?"}]
        return said


@pytest.fixture
def chat(scripted_server: str) -> Chat:
    return Chat(scripted_server)


def num_failures(server: str) -> float:
    lines = http.get(f"{server}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("acmserve:storage_failures_total{"))


def check_warning(acm: Any, file: Path) -> None:
    assert acm["receipt"]["prompt_tokens"] > 0
    assert acm["storage"]["saved"] is False
    assert acm["storage"]["reason"] in ("locked", "full", "failed")
    assert str(file.parent) not in json.dumps(acm)


def test_an_answer_is_given_with_a_warning_and_the_file_heals(chat: Chat, fault: Fault, file: Path) -> None:
    assert "storage" not in chat.go_on()["acm"]
    before = num_failures(chat.server)
    with fault():
        check_warning(chat.go_on()["acm"], file)
        context = http.get(f"{chat.url}/context").json()
        assert [message["origin"] for message in context["messages"]] == ["client", "answer", "client", "answer"]
    assert num_failures(chat.server) > before
    assert "storage" not in chat.go_on()["acm"]
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as reader:
        (number,) = reader.execute("SELECT number FROM sessions WHERE session_id = ?", (chat.name,)).fetchone()
        assert reader.execute(f"SELECT count(*) FROM entries_{number}").fetchone() == (6,)
    reader.close()


@pytest.mark.parametrize("acm", [{}, {"tools": "sculptor"}], ids=["plain", "loop"])
def test_a_stream_of_a_new_session_ends_as_it_should(chat: Chat, fault: Fault, file: Path, acm: dict[str, str]) -> None:
    with fault():
        events = [line[6:] for line in chat.ask(stream=True, acm=acm).text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    said = [json.loads(event) for event in events[:-1]]
    assert any(choice["delta"].get("content") for event in said for choice in event["choices"])
    check_warning([event["acm"] for event in said if "acm" in event][-1], file)


def test_a_deletion_tells_that_the_text_is_still_there_until_it_is_not(chat: Chat, fault: Fault, file: Path) -> None:
    chat.go_on()
    with fault():
        for _ in range(2):
            refused = http.delete(chat.url)
            assert refused.status_code == 503
            error = refused.json()["error"]
            assert "disk may still hold its text" in error["message"]
            assert "delete the session again" in error["remedy"]
            assert str(file.parent) not in refused.text
            assert http.get(chat.url).status_code == 404
    assert http.delete(chat.url).status_code == 204
    assert http.delete(chat.url).status_code == 404


def test_an_edit_is_made_and_its_answer_has_the_warning(chat: Chat, fault: Fault) -> None:
    chat.go_on()
    redact = {"edits": [{"op": "redact", "messages": {"start": 0, "end": 1}}]}
    with fault():
        edited = http.post(f"{chat.url}/edits", json=redact)
        assert edited.status_code == 200
        assert edited.json()["storage"]["saved"] is False
        assert "bring removed text back" in edited.json()["storage"]["warning"]
        assert http.get(chat.url).json()["storage"]["saved"] is False
        assert SECRET not in http.get(f"{chat.url}/context").text
    chat.messages.append({"role": "user", "content": "And now?"})
    chat.go_on()
    assert http.get(chat.url).json()["storage"] is None
