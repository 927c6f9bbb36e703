"""A server of a tiny model with two API keys, a file of sessions and a log of JSON lines, and whoever holds a key.

Two files of tests share one: what tenants see of each other, and what the operator sees from the banner to the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from tests.support import http
from tests.support.server.running_server import FLEET, Running, server_process
from tests.support.tenants.doors import MODEL

KEYS = ("key-a", "key-b")
_MAX_MODEL_LEN = 4096
_FLAGS = (
    *("--max-model-len", str(_MAX_MODEL_LEN), "--fidelity", "reuse", "--served-model-name", MODEL),
    *("--chat-template", str(TOOLS_TEMPLATE), "--api-key", *KEYS),
    *("--block-size", "32", "--enable-scale-out", "--log-format", "json"),
)


@dataclass(frozen=True)
class KeyedServer:
    """The server, and the folder with its log and its sessions. Requests are those of the first key."""

    running: Running
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEYS[0]}"}

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Any route of the server."""
        return http.post(f"{self.running.url}{path}", json=body, headers=self.headers)

    def put(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return http.put(f"{self.running.url}{path}", json=body, headers=self.headers)

    def ask(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """A route that generates, for a few tokens."""
        return self.post(path, {"model": MODEL, "max_tokens": 4, **body})

    def chat(self, session_id: str, *texts: str) -> dict[str, Any]:
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
        answer = self.ask("/v1/chat/completions", {"session_id": session_id, "messages": messages})
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@contextmanager
def start_keyed_server(folder: Path) -> Iterator[KeyedServer]:
    """One that may be dead when this ends."""
    model = write_tiny_model(folder / "model", _MAX_MODEL_LEN)
    flags = [*_FLAGS, *(["--api-server-count", "2"] if FLEET else ["--data-dir", str(folder / "data")])]
    with server_process(model, folder / "server.log", flags, tiny=True) as running:
        yield KeyedServer(running, folder)
