"""The API servers of one deployment: the layer that brings each request to the one that owns its session.

    request --Addressing--> nobody's, or this server's   --> the app behind this layer
                            a sibling's                  --> handed over (`sibling_client.py`)
                            everybody's                  --> gathered from all (`gathering.py`)

The layer stands behind authentication and CORS. Decision: one process owns a session, and the others hand over. So
locks, budgets, branches, precompute and events stay what they are in one process, and no two processes share a file.
`benchmarks/LOG.md` compares that with one store for all.

Where an API server dies, vLLM ends the whole server. So there is no failover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from acmserve.errors import IntegrityError, Unavailable
from acmserve.server.http.errors import problem, problem_response
from acmserve.server.siblings.addressing import Addressing, Gathered, read_object
from acmserve.server.siblings.arrived_body import ArrivedBody, read_body
from acmserve.server.siblings.gathering import gather_events, gather_health, gather_sessions, gather_usage
from acmserve.server.siblings.run_folder import read_secret, socket_path
from acmserve.server.siblings.sibling_client import SiblingClient
from acmserve.server.siblings.sibling_server import SiblingServer

REQUESTS = Counter(
    "acmserve:session_requests",
    "Requests of sessions by the API server that they reached: the owner of the session, or a sibling.",
    labelnames=("reached",),
)
OWNER, SIBLING = "owner", "sibling"
for _reached in (OWNER, SIBLING):
    REQUESTS.labels(_reached)

_GATHERERS: Mapping[Gathered, Callable[..., Awaitable[Response]]] = {
    Gathered.SESSIONS: gather_sessions,
    Gathered.USAGE: gather_usage,
    Gathered.HEALTH: gather_health,
}
_POLL_SECONDS = 0.05
_STOPPING = "The server is about to stop. Send the request again once it is up."


@dataclass(frozen=True, slots=True)
class SiblingAnswers:
    """What a sibling may ask of this process: the session of an answer, and that its gauges be set."""

    session_of: Callable[[str, str], str | None]
    set_gauges: Callable[[], None]


class Siblings:
    """The layer's state, one for each API server. Nothing is handed over before `start` and after `stop`."""

    def __init__(self, folder: Path, num_servers: int) -> None:
        self.index: int | None = None
        self.inner: ASGIApp | None = None
        self._folder = folder
        self._num_servers = num_servers
        self._secret = read_secret(folder)
        self._addressing: Addressing | None = None
        self._known: SiblingAnswers | None = None
        self._server: SiblingServer | None = None
        self._clients: list[SiblingClient] = []

    def settle(self, index: int, addressing: Addressing, known: SiblingAnswers) -> None:
        """Say which of the servers this is, and how requests are read."""
        self.index, self._addressing, self._known = index, addressing, known

    async def start(self, app: Any) -> None:
        """Listen for the siblings, and wait until all of them do. No client is served before that."""
        if self.index is None or self.inner is None:
            return
        path = socket_path(self._folder, self.index)
        self._server = SiblingServer(path, self._secret, app, self.inner, self.tell)
        await self._server.start()
        while not all(socket_path(self._folder, index).exists() for index in range(self._num_servers)):
            await asyncio.sleep(_POLL_SECONDS)
        self._clients = [SiblingClient(self._folder, index, self._secret) for index in range(self._num_servers)]

    async def stop(self, app: Any) -> None:
        """Answer what was handed over already, and nothing more."""
        if self._server is not None:
            await self._server.stop()
        for client in self._clients:
            await client.close()

    async def place(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request here, or have it answered."""
        inner, addressing = self.inner, self._addressing
        assert inner is not None
        if not self._clients or addressing is None:
            await inner(scope, receive, send)
            return
        try:
            gathered = addressing.gathered(scope)
            if gathered is not None:
                await self._gather(gathered, scope, receive, send)
                return
            arrived = await read_body(scope, receive) if addressing.needs_body(scope) else ArrivedBody()
            owner = None if arrived.refusal else await self._owner(addressing, scope, arrived.whole)
        except Unavailable as error:
            await problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), None, _STOPPING)(scope, receive, send)
            return
        if owner is not None:
            REQUESTS.labels(OWNER if owner == self.index else SIBLING).inc()
        if (owner is None or owner == self.index) and arrived.refusal is None:
            await inner(scope, arrived.again(receive), send)
            return
        if not arrived.messages:
            arrived = await read_body(scope, receive)
        if arrived.refusal is not None:
            await problem_response(arrived.refusal)(scope, receive, send)
        elif arrived.whole is not None and owner is not None:
            await self._clients[owner].forward(scope, arrived.whole, arrived.again(receive), send)

    def tell(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a sibling asks of this process."""
        known = self._known
        assert known is not None
        if wanted.get("gauges"):
            known.set_gauges()
        names = {each: known.session_of(wanted["tenant"], each) for each in wanted.get("responses", ())}
        return {each: name for each, name in names.items() if name is not None}

    def check_integrity(self) -> None:
        """Raise `IntegrityError` where this server is none of the deployment's, or reaches another number of them."""
        if self.index is not None and not 0 <= self.index < self._num_servers:
            raise IntegrityError(f"siblings: this is server {self.index} of {self._num_servers}")
        if self._clients and len(self._clients) != self._num_servers:
            raise IntegrityError(f"siblings: {len(self._clients)} of {self._num_servers} servers are reached")

    async def _owner(self, addressing: Addressing, scope: Scope, body: bytes | None) -> int | None:
        if body is None:
            return addressing.owner_by_path(scope)
        given = read_object(body)
        if given is None:
            return addressing.owner_by_path(scope)
        names: dict[str, str] = {}
        responses = addressing.responses_in(scope, given)
        if responses:
            wanted = {"tenant": addressing.tenant_of(scope, given), "responses": responses}
            for client in self._clients:
                names |= await client.ask(wanted)
        return addressing.owner_by_body(scope, given, names.get)

    async def _gather(self, gathered: Gathered, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.inner is not None
        if gathered is Gathered.EVENTS:
            await gather_events(self._clients, scope, receive, send)
        elif gathered is Gathered.METRICS:
            for client in self._clients:
                await client.ask({"gauges": True})
            await self.inner(scope, receive, send)
        else:
            response = await _GATHERERS[gathered](self._clients, scope)
            await response(scope, receive, send)


class SiblingMiddleware:
    """The layer in an app. What stands behind it answers what siblings hand over, too."""

    def __init__(self, app: ASGIApp, siblings: Siblings) -> None:
        self._app = app
        self._siblings = siblings
        siblings.inner = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._siblings.place(scope, receive, send)
        else:
            await self._app(scope, receive, send)
