"""A server of the routes and the page in this process, with sessions worth looking at. It has no engine.

It asks for an API key below `/v1`, as vLLM's middleware does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from acmserve.context.session.render import render
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import texts
from acmserve.server.context.server import ContextServer
from acmserve.server.inspector.page import inspector_router
from tests.support import http
from tests.support.inspector.histories import long_history, served_turns
from tests.support.recorded_turns import after_all, receipt
from tests.support.server.acm_app import make_app, make_server

KEY = "key-a"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


@dataclass(frozen=True)
class Inspected:
    """A server that answers. `do` runs a function on its event loop, where its sessions live."""

    url: str
    server: ContextServer
    loop: asyncio.AbstractEventLoop

    def do(self, act: Callable[[], Any]) -> Any:
        async def acting() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), self.loop).result(timeout=http.SECONDS)

    def post(self, path: str, body: Any = None) -> Any:
        return http.post(f"{self.url}/v1/acm/{path}", json=body, headers=AUTHORIZED).raise_for_status().json()

    def put(self, path: str, body: Any) -> Any:
        return http.put(f"{self.url}/v1/acm/{path}", json=body, headers=AUTHORIZED).raise_for_status().json()

    def get(self, path: str) -> Any:
        return http.get(f"{self.url}/v1/acm/{path}", headers=AUTHORIZED).raise_for_status().json()

    def make(self, session_id: str, messages: list[dict[str, Any]]) -> None:
        self.post("sessions", {"session_id": session_id, "messages": messages})

    def session(self, session_id: str) -> Session:
        return self.server.store.get(self.server.sessions.tenant_of(Headers(AUTHORIZED)), session_id)

    def serve(self, session_id: str) -> None:
        """What the model sees was a prompt a moment ago. Its middle was moved."""
        session = self.session(session_id)
        messages = render(session.state)
        prompt = self.server.tokenizer.encode(" ".join(text.strip() for each in messages for _, text in texts(each)))
        third = len(prompt) // 3
        move = {"dst_start": third, "src_start": third + 90, "num_tokens": third}
        told = receipt(third, third, len(prompt) - 2 * third, fidelity="reuse", moves=[move])
        self.do(lambda: self.server.served.of(*session.key).record(messages, prompt, told))

    def record(self, session_id: str, events: list[Any]) -> None:
        """Let turns, edits and evictions happen to a session."""
        session = self.session(session_id)
        self.do(lambda: self.server.store.record(session, after_all(events, session.turns)))


@contextmanager
def inspected_server() -> Iterator[Inspected]:
    """Runs in a thread until the block ends."""
    server = make_server(has_api_keys=True)
    app = make_app(server)
    app.include_router(inspector_router())
    app.add_middleware(AskForKey)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        running = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        app.state.server = running
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_until_complete, args=(running.serve([sock]),), daemon=True)
        thread.start()
        while not running.started:
            thread.join(0.02)
            assert thread.is_alive(), "uvicorn did not start"
        try:
            yield Inspected(f"http://127.0.0.1:{sock.getsockname()[1]}", server, loop)
        finally:
            running.should_exit = True
            thread.join(http.SECONDS)
            loop.close()


class AskForKey:
    """Answers 401 to a request below `/v1` without the key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            key = Headers(scope=scope).get("Authorization")
            app = app if key == AUTHORIZED["Authorization"] else JSONResponse({"error": "Unauthorized"}, 401)
        await app(scope, receive, send)


def fill_sessions(inspected: Inspected) -> None:
    """`harbour`: two folds, a redaction, a budget and turns. `quiet`: nothing yet. `m`: a context map."""
    inspected.make("harbour", long_history(8))
    fold = [{"op": "fold", "messages": {"start": start, "end": start + 1}} for start in (3, 11)]
    redact = {"op": "redact", "messages": {"start": 19, "end": 20}}
    edited = inspected.post("sessions/harbour/edits", {"edits": [*fold, redact]})["edits"]
    inspected.put("sessions/harbour/budget", {"max_tokens": 300, "low_watermark": 250, "policy": "recency"})
    inspected.post("sessions/harbour/branches", {"description": "look into log 7", "prompt": "Which ship?"})
    inspected.make("quiet", [])
    inspected.record("harbour", served_turns(folded=[edit["fragment_id"] for edit in edited]))
    inspected.serve("harbour")
    text = "## CONTEXT ROADMAP\n388 records\n## REUSABLE RESULTS\nthe port is 8000"
    inspected.put("maps/m", {"text": text})
