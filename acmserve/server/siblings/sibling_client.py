"""Hands a request to the API server that owns its session, and its answer back as it comes.

    client --> this server --> unix socket of the owner --> the owner's app, behind its authentication
           <-- as it comes <--

The request arrives as it was sent: method, path, query, headers and body, byte for byte. Beside them travel the secret
and what only the first connection knows, the client's address and the scheme. What a sibling itself asks has the secret
alone, so no client can ask it. Nothing of an answer is held back. A client that leaves closes the connection to the
owner, which ends its request.

It does not know who owns what.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpcore
from starlette.types import Message, Receive, Scope, Send

from acmserve.errors import Unavailable
from acmserve.server.http.errors import problem
from acmserve.server.siblings.run_folder import socket_path

SECRET_HEADER = b"x-acmserve-sibling"
SCOPE_HEADER = b"x-acmserve-scope"
"""Every request of a client has it when it is handed over, and nothing that a sibling asks has."""
KEPT_SECONDS = 60.0
"""How long an idle connection is kept. The other side keeps it for longer (`sibling_server.py`)."""
_OF_CONNECTION = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"})
_NOT_SENT = _OF_CONNECTION | {b"proxy-connection", b"content-length", b"expect", SECRET_HEADER, SCOPE_HEADER}
_HOST = b"sibling"
"""Stands in the place of a `Host` that the client did not send. Like none, it is no address of this machine."""
_NOT_IN_TARGET = re.compile(rb"[^\x21-\x7e]")
_NO_SIBLING = "The server is about to stop. Send the request again once it is up."


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer of a sibling."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def value(self) -> dict[str, Any]:
        """Its body as a JSON object."""
        value: dict[str, Any] = json.loads(self.body)
        return value


class SiblingClient:
    """Connections to one API server."""

    def __init__(self, folder: Path, index: int, secret: bytes) -> None:
        self._index = index
        self._secret = secret
        path = str(socket_path(folder, index))
        self._pool = httpcore.AsyncConnectionPool(uds=path, max_connections=None, keepalive_expiry=KEPT_SECONDS)

    async def forward(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Have the sibling answer a request whose body was read. Ends when the answer or its reader has."""
        relaying = asyncio.ensure_future(self._relay(scope, body, send))
        await first_of(relaying, asyncio.ensure_future(left(receive)))

    async def get(self, scope: Scope, target: bytes) -> Answered:
        """What the sibling answers to the sender of a request at another path. Raises `Unavailable`."""
        async with self.stream(scope, target) as response:
            return Answered(response.status, response.headers, await response.aread())

    async def ask(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What the sibling itself says, see `SiblingServer`. Raises `Unavailable`."""
        body = json.dumps(wanted).encode()
        headers = [(b"host", _HOST), (b"content-length", str(len(body)).encode()), (SECRET_HEADER, self._secret)]
        async with self._send("POST", b"/", headers, body) as response:
            return Answered(response.status, response.headers, await response.aread()).value()

    @asynccontextmanager
    async def stream(self, scope: Scope, target: bytes, body: bytes = b"") -> AsyncIterator[httpcore.Response]:
        """The answer to a request of this sender, unread. Raises `Unavailable` where nobody is reached."""
        async with self._send(scope["method"], target, self._headers(scope, body), body) as response:
            yield response

    @asynccontextmanager
    async def _send(
        self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[httpcore.Response]:
        url = httpcore.URL(scheme=b"http", host=_HOST, target=target)
        request = httpcore.Request(method, url, headers=headers, content=body)
        try:
            response = await self._pool.handle_async_request(request)
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise Unavailable(f"API server {self._index} of this machine is not reached: {error}") from error
        try:
            yield response
        finally:
            await response.aclose()

    async def close(self) -> None:
        """End the idle connections."""
        await self._pool.aclose()

    async def _relay(self, scope: Scope, body: bytes, send: Send) -> None:
        try:
            async with self.stream(scope, target_of(scope), body) as response:
                await send(start_of(response.status, response.headers))
                async for chunk in response.aiter_stream():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except Unavailable as error:
            await problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), None, _NO_SIBLING)(scope, _left_already, send)
            return
        await send({"type": "http.response.body", "body": b""})

    def _headers(self, scope: Scope, body: bytes) -> list[tuple[bytes, bytes]]:
        kept = [(name, value.strip(b" \t")) for name, value in scope["headers"] if name.lower() not in _NOT_SENT]
        if all(name.lower() != b"host" for name, _ in kept):
            kept.append((b"host", _HOST))
        if body or scope["method"] in ("POST", "PUT", "PATCH"):
            kept.append((b"content-length", str(len(body)).encode()))
        told = {name: scope.get(name) for name in ("client", "server", "scheme")}
        return [*kept, (SECRET_HEADER, self._secret), (SCOPE_HEADER, json.dumps(told).encode())]


def target_of(scope: Scope) -> bytes:
    """Path and query of a request as they were sent. A byte that HTTP does not allow there is percent-encoded."""
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return _NOT_IN_TARGET.sub(lambda found: b"%%%02X" % found[0][0], path + b"?" + query if query else path)


def start_of(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    """The start of an answer that goes on with a sibling's. What belongs to a connection stays behind."""
    kept = [(name.lower(), value) for name, value in headers if name.lower() not in _OF_CONNECTION]
    return {"type": "http.response.start", "status": status, "headers": kept}


async def first_of(work: asyncio.Task[None], *others: asyncio.Task[None]) -> None:
    """Wait until the work is done, or the first of the others. Then all end. Raises what the work has raised."""
    try:
        ended = {work, others[0]}
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, *others):
            task.cancel()
        await asyncio.gather(work, *others, return_exceptions=True)


async def left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _left_already() -> Message:
    return {"type": "http.disconnect"}
