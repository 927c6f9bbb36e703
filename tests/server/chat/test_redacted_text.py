"""After a redaction the text is nowhere: in no answer of any route of its session, and in no file of the server.

It was in a message, in a fragment, in a search's hits, in what was precomputed, and in a branch. The client still has
it and sends it again. The control is the same look before the redaction.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session


class Told:
    """A session that was told a secret, in all the ways that there are."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.secret = f"cormorant{uuid.uuid4().hex}"
        self.name = new_session()
        lines = [log_lines(20), f"The safe opens with {self.secret}.", log_lines(20, 20)]
        self.messages = [{"role": "user", "content": "\n".join(["The log begins.", *lines, "The log ends."])}]

    def url(self, path: str = "") -> str:
        return f"{self.server}/v1/acm/sessions/{self.name}{path}"

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = http.post(self.url(path), json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def chat(self, text: str) -> Any:
        self.messages.append({"role": "user", "content": text})
        body = {"model": MODEL, "session_id": self.name, "messages": self.messages, "max_tokens": 8}
        answer = http.post(f"{self.server}/v1/chat/completions", json=body).raise_for_status().json()
        self.messages.append(answer["choices"][0]["message"])
        return answer

    def spread(self) -> None:
        """Bring the secret everywhere."""
        self.chat("Note it.")
        markers = {"start_marker": "The log begins.", "end_marker": "The log ends.", "num_fragments": 2}
        self.fragment_ids = self.post("/tools/fragment_context", {"arguments": markers})["fragment_ids"]
        assert self.secret in json.dumps(self.search())
        self.prepared = self.post("/prepare", {"edits": [{"op": "fold", "fragment_id": self.fragment_ids[1]}]})[
            "prepare_id"
        ]
        self.branch = self.post("/branches", {"description": "find out", "prompt": "How does it open?"})["branch_id"]
        deadline = time.monotonic() + http.SECONDS
        while (told := http.get(self.url()).json()["precompute"])["working"]:
            assert time.monotonic() < deadline, told
            time.sleep(0.05)

    def search(self) -> Any:
        arguments = {"query": "safe opens", "role": "all", "max_results": 5}
        return self.post("/tools/search_context", {"arguments": arguments})

    def shown(self) -> Iterator[tuple[str, str]]:
        """Every GET of this session and of its branch that the server's own document names.

        Events are a stream without an end, and have no text.
        """
        paths = http.get(f"{self.server}/openapi.json").json()["paths"]
        names = {"prepare_id": self.prepared, "branch_id": self.branch}
        for path in (path for path, methods in paths.items() if "{session_id}" in path and "get" in methods):
            indices = range(len(self.messages)) if "{index}" in path else range(1)
            for session in (self.name, self.branch) if not path.endswith("/events") else ():
                for index in indices:
                    place = path.format(session_id=session, index=index, **names)
                    answer = http.get(f"{self.server}{place}")
                    assert answer.status_code in (200, 404, 409), (place, answer.text)
                    yield path, answer.text
        yield "search", json.dumps(self.search())

    def places(self, folder: Path) -> list[str]:
        """Where the secret is."""
        answers = [path for path, text in self.shown() if self.secret in text]
        files = [path for path in (folder / "data").rglob("*") if path.is_file()]
        return answers + [path.name for path in files if self.secret.encode() in path.read_bytes()]


@pytest.fixture
def told(scripted_server: str) -> Told:
    session = Told(scripted_server)
    session.spread()
    return session


def test_a_redacted_text_is_nowhere(told: Told, scripted_folder: Path) -> None:
    before = told.places(scripted_folder)
    assert {"search", "/v1/acm/sessions/{session_id}/context"} < set(before)
    assert [name for name in before if "sqlite3" in name]
    redaction = {"edits": [{"op": "redact", "fragment_id": fragment_id} for fragment_id in told.fragment_ids]}
    assert http.post(told.url("/edits"), json=redaction).status_code == 409, "a branch holds a copy"
    assert http.delete(told.url(f"/branches/{told.branch}")).status_code == 204
    told.post("/edits", redaction)
    for path in ("", "/context", "/messages", "/messages/0", "/turns", "/export"):
        assert http.get(told.url(path)).status_code == 200, path
    assert told.places(scripted_folder) == []
    said = told.chat("And now?")
    assert said["acm"]["receipt"]["moved_tokens"] == 0
    assert told.secret in json.dumps(told.messages), "the client sends it for ever"
    assert told.places(scripted_folder) == []
    assert told.secret not in (scripted_folder / "server.log").read_text()
