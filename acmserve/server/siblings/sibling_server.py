"""Where an API server answers its siblings: a Unix socket that only they can use, in front of the very same app.

    unix socket --secret?--> what stands behind the layer that hands over: routes, sessions, engine
                --no-------> 403

A handed request has passed the sibling's authentication, CORS and request ids. So none of them looks at it again. The
answer is that of a request that arrived here.

    {"tenant": T, "responses": [..]}   which session gave which answer
    {"gauges": true}                   sets the gauges of this process, for a sibling's /metrics

These two are a sibling's own questions. They come without `SCOPE_HEADER`, which every handed request has. So no client
can ask them: whatever its path and headers are, it is handed over with the scope of its connection.

Decision: uvicorn answers here as it does in front. It takes no signals, and writes no access log.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import socket
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from acmserve.server.siblings.sibling_client import KEPT_SECONDS, SCOPE_HEADER, SECRET_HEADER

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
_POLL_SECONDS = 0.01


class _Quiet(H11Protocol):
    """Writes no access log: the server in front has a line for each request.

    `access_log=False` of uvicorn would silence that one, too, for both have one logger.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False


class _Uvicorn(uvicorn.Server):
    """Signals are those of the server in front."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class SiblingServer:
    """Answers handed requests with `inner`. `app` is whose it is, `ask` answers what siblings ask."""

    def __init__(self, path: Path, secret: bytes, app: Any, inner: ASGIApp, ask: Ask) -> None:
        self._path = path
        self._secret = secret
        self._app = app
        handler = app.exception_handlers.get(Exception) or app.exception_handlers.get(500)
        self._inner = ServerErrorMiddleware(inner, handler)
        self._ask = ask
        self._task: asyncio.Task[None] | None = None
        limit = getattr(getattr(app.state, "args", None), "h11_max_incomplete_event_size", None)
        config = uvicorn.Config(
            self.answer,
            interface="asgi3",
            log_config=None,
            http=_Quiet,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(KEPT_SECONDS * 10),
            h11_max_incomplete_event_size=limit,
        )
        self._server = _Uvicorn(config)

    async def start(self) -> None:
        """Listen. Returns when siblings can connect."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(self._path))
        os.chmod(self._path, 0o600)
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        """Answer what has begun, and nothing more."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One handed request, as the sibling got it, or a question of the sibling."""
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(SECRET_HEADER, b""), self._secret):
            await PlainTextResponse("This socket is for acmserve's own API servers.", 403)(scope, receive, send)
            return
        if SCOPE_HEADER not in headers:
            await self._tell(scope, receive, send)
            return
        told = json.loads(headers[SCOPE_HEADER])
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in (SECRET_HEADER, SCOPE_HEADER)]
        for name in ("client", "server"):
            scope[name] = None if told[name] is None else tuple(told[name])
        scope["scheme"], scope["app"] = told["scheme"], self._app
        if self._app.root_path:
            scope["root_path"] = self._app.root_path
        await self._inner(scope, receive, send)

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
        await JSONResponse(dict(self._ask(json.loads(body))))(scope, receive, send)
