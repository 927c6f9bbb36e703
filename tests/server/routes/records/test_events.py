"""The routes of events, over ASGI: what a client reads while something happens, and how streams end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from acmserve.context.session.history import adopt
from acmserve.server.context.server import ContextServer
from acmserve.server.sessions.events import MAX_WAITING
from tests.support.recorded_turns import after_all, answered
from tests.support.server.acm_app import HISTORY, SESSIONS, make_app, make_client, make_server

SECONDS = 300


class Listener:
    """A client of one stream. It reads by the event, and leaves when its block ends."""

    def __init__(self, app: FastAPI, path: str, client: str = "127.0.0.1") -> None:
        self.scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        self.scope |= {"client": (client, 50_000), "http_version": "1.1", "scheme": "http", "root_path": "", "app": app}
        self.app = app
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.left = asyncio.Event()
        self.status, self.type = 0, b""

    async def __aenter__(self) -> Listener:
        self.task = asyncio.create_task(self.app(self.scope, self._receive, self.sent.put))
        begun = await asyncio.wait_for(self.sent.get(), SECONDS)
        self.status, self.type = begun["status"], dict(begun["headers"])[b"content-type"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left.set()
        await asyncio.wait_for(self.task, SECONDS)

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def body(self) -> str:
        return str((await asyncio.wait_for(self.sent.get(), SECONDS))["body"].decode())

    async def event(self) -> dict[str, Any]:
        name, data, *rest = (await self.body()).split("\n")
        assert rest == ["", ""]
        event: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        return event

    async def rest(self) -> list[str]:
        """The types of all events until the stream ends."""
        found = []
        while text := await self.body():
            found.append(text.partition("\n")[0].removeprefix("event: "))
        return found


@pytest.fixture
def server() -> ContextServer:
    server = make_server()
    server.store.save(server.store.create("", "s"), adopt(server.store.get("", "s").state, HISTORY[:2]).state)
    return server


def run(act: Callable[[FastAPI], Awaitable[Any]], server: ContextServer) -> Any:
    return asyncio.run(act(make_app(server)))  # type: ignore[arg-type]


def test_a_stream_tells_what_happens_to_a_session(server: ContextServer) -> None:
    async def listen(app: FastAPI) -> None:
        async with Listener(app, f"{SESSIONS}/s/events") as listener:
            assert (listener.status, listener.type) == (200, b"text/event-stream; charset=utf-8")
            assert (await listener.event())["type"] == "opened"
            session = server.store.get("", "s")
            server.store.create("", "another")
            server.store.save(session, adopt(session.state, HISTORY).state)
            changed = await listener.event()
            assert changed == {"type": "changed", "session_id": "s", "used_at": session.used_at, "num_messages": 4} | {
                "num_fragments": 0,
                "num_hidden_fragments": 0,
            }
            server.store.record(session, after_all([answered()]))
            assert (await listener.event())["type"] == "changed", "a turn is told when it is recorded"
            server.store.delete("", "s")
            assert await listener.rest() == ["deleted"]
        assert len(server.events) == 0

    run(listen, server)


def test_a_stream_of_all_goes_on_when_one_is_deleted(server: ContextServer) -> None:
    async def listen(app: FastAPI) -> None:
        async with Listener(app, "/v1/acm/events") as listener:
            assert (await listener.event())["type"] == "opened"
            server.store.delete("", "s")
            assert (await listener.event())["type"] == "deleted"
            server.store.create("", "next")
            assert (await listener.event())["session_id"] == "next"

    run(listen, server)


def test_no_text_of_a_conversation_is_told(server: ContextServer) -> None:
    async def listen(app: FastAPI) -> str:
        async with Listener(app, "/v1/acm/events") as listener:
            told = await listener.body()
            session = server.store.get("", "s")
            server.store.save(session, adopt(session.state, HISTORY).state)
            return told + await listener.body()

    told = run(listen, server)
    assert "num_messages" in told
    assert "beta" not in told


def test_streams_end_when_the_server_stops(server: ContextServer) -> None:
    async def listen(app: FastAPI) -> None:
        app.state.server = SimpleNamespace(should_exit=False)
        async with Listener(app, "/v1/acm/events") as listener:
            assert (await listener.event())["type"] == "opened"
            app.state.server.should_exit = True
            assert await listener.rest() == []

    run(listen, server)


def test_a_reader_that_is_too_slow_is_told_and_its_stream_ends(server: ContextServer) -> None:
    async def listen(app: FastAPI) -> None:
        async with Listener(app, "/v1/acm/events") as listener:
            assert (await listener.event())["type"] == "opened"
            for number in range(MAX_WAITING + 1):
                server.events.publish(("", str(number)), "turn_started")
            assert await listener.rest() == ["dropped"]

    run(listen, server)


def test_a_client_that_leaves_is_forgotten(server: ContextServer) -> None:
    async def listen(app: FastAPI) -> None:
        async with Listener(app, "/v1/acm/events") as listener:
            await listener.event()
            assert len(server.events) == 1
        assert len(server.events) == 0

    run(listen, server)


def test_who_may_not_list_may_not_listen_to_all(server: ContextServer) -> None:
    async def listen(app: FastAPI) -> None:
        async with Listener(app, "/v1/acm/events", client="203.0.113.7") as listener:
            assert listener.status == 403
        async with Listener(app, f"{SESSIONS}/s/events", client="203.0.113.7") as listener:
            assert listener.status == 200, "the control: it knows the name"

    run(listen, server)


def test_a_session_of_somebody_else_is_not_there(server: ContextServer) -> None:
    client = make_client(server)
    assert client.get(f"{SESSIONS}/s/events", headers={"X-Cache-Salt": "other"}).status_code == 404
    assert client.get(f"{SESSIONS}/none/events").status_code == 404
