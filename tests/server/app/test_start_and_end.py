"""One server from its banner to its end by Ctrl-C, and what its operator sees in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.app.launch.banner import MAX_LINES
from tests.support import http
from tests.support.server.running_server import START_SECONDS, Running, check_end, server_process

MODEL = "tiny"
SECRET = "The heron stands on one leg by the lighthouse."


@dataclass(frozen=True)
class Watched:
    """A server, and the folder with its log and its sessions."""

    running: Running
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return http.post(f"{self.running.url}{path}", json={"model": MODEL, "max_tokens": 4, **body})

    def chat(self, session_id: str, *texts: str) -> dict[str, Any]:
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
        answer = self.post("/v1/chat/completions", {"session_id": session_id, "messages": messages})
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    flags = ["--served-model-name", MODEL, "--chat-template", str(TOOLS_TEMPLATE), "--data-dir", str(folder / "data")]
    with server_process(write_tiny_model(folder / "model", 4096), folder / "server.log", flags, tiny=True) as running:
        yield Watched(running, folder)


def test_a_banner_says_what_was_started(watched: Watched) -> None:
    lines = watched.log.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("acmserve is ready at "))
    banner = [lines[start]]
    banner += [line for line in lines[start + 1 : start + MAX_LINES] if line.startswith("  ")]
    assert banner == [
        f"acmserve is ready at {watched.running.url}",
        "  model       tiny, 4,096 tokens",
        "  fidelity    exact: text behind an edit is computed again, token for token as vLLM answers",
        "  moves       allowed, where a request asks for reuse, repair or auto",
        f"  sessions    in {watched.folder / 'data'}, unused ones for 168 hours",
        "  keys        none, whoever reaches the address reads every session",
        "  precompute  off",
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hello."}]}),
        ("/v1/responses", {"input": "Hello."}),
    ],
)
def test_a_misspelt_field_is_refused_on_every_route(path: str, body: dict[str, Any], watched: Watched) -> None:
    for extra, meant in (
        ({"session": "a"}, "'session_id'"),
        ({"session_id": "a", "acm": {"fidelty": "exact"}}, "'fidelity'"),
        ({"session_id": "a", "acm": {"budgett": 9}}, "'budget'"),
        ({"fidelity": "reuse"}, "'acm.fidelity'"),
    ):
        refused = watched.post(path, body | extra)
        assert refused.status_code == 400
        assert f"Did you mean {meant}?" in refused.json()["error"]["message"]
    passed = watched.post(path, body | {"store": True, "user": "me", "a_field_of_nobody": {"x": 1}})
    assert passed.status_code == 200, passed.text


def test_a_misspelt_field_is_refused_on_our_own_routes(watched: Watched) -> None:
    watched.chat("edited", SECRET)
    url = f"{watched.running.url}/v1/acm/sessions/edited"
    for path, body, meant in (
        ("edits", {"edit": []}, "'edits'"),
        ("edits", {"edits": [{"op": "fold", "mesages": {"start": 0, "end": 1}}]}, "'messages'"),
        ("budget", {"max_token": 9}, "'max_tokens'"),
    ):
        refused = (http.put if path == "budget" else http.post)(f"{url}/{path}", json=body)
        assert refused.status_code == 400
        assert f"Did you mean {meant}?" in refused.json()["error"]["message"]


def test_ctrl_c_ends_it_and_keeps_its_sessions(watched: Watched) -> None:
    """The last test of this file: a terminal sends the signal to every process of the server."""
    watched.chat("kept", SECRET)
    process = watched.running.process
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=START_SECONDS)
    check_end(process.returncode, watched.folder / "server.log")
    store = SessionStore(SessionLimits(), Archive(watched.folder / "data"))
    try:
        assert {session_id for _, session_id in (head.key for head in store.list(""))} >= {"kept", "edited"}
    finally:
        store.close()
