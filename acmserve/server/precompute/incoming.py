"""Requests that have arrived and are not in the engine yet: the engine's background work makes way for them at once.

    request arrives ---- read, planned, rendered, tokenized ---- engine ---- answer begins
    raised  +----------------------------------------------------------------+
                                                                              or it was refused, or its client left

The flag is shared with the engine (`ArrivalFlag`), where nobody else can know of these requests. Raised, it ends a
background chunk in front of the next layer, and no other begins. A background request that came over HTTP is nobody to
make way for: it lowers the flag as it enters the engine.

Decision: who has been on the way for `MAX_SECONDS` is waited for no more. A head whose body never comes would hold up
the work of all tenants. The engine bounds a flag, too, and cannot tell one who hangs from others who come and go.

Knows paths and when a request begins and ends, and reads nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acmserve.errors import IntegrityError
from acmserve.plan.pacing.arrival_flag import ArrivalFlag, server_flag_name
from acmserve.plan.request import is_background

logger = logging.getLogger(f"vllm.{__name__}")

Generate = Callable[..., AsyncGenerator[Any, None]]

MAX_SECONDS = 5.0
"""How long one request holds background work up before the engine knows it."""


class IncomingRequests:
    """The requests on their way to the engine. The flag is raised while there are any."""

    def __init__(self, engine_id: str) -> None:
        self._coming: set[IncomingRequest] = set()
        self._flag: ArrivalFlag | None = None
        try:
            self._flag = ArrivalFlag(server_flag_name(engine_id), makes=True)
        except FileExistsError:
            logger.info("acmserve: background work hears of requests when the engine does: another server has its id")

    def add(self) -> IncomingRequest:
        """Somebody arrived."""
        request = IncomingRequest(self)
        self._coming.add(request)
        if self._flag is not None:
            self._flag.raise_it()
        return request

    def remove(self, request: IncomingRequest) -> None:
        """Somebody's answer begins, or will never begin."""
        self._coming.discard(request)
        if self._flag is not None and not self._coming:
            self._flag.lower()

    def close(self) -> None:
        """The server ends."""
        flag, self._flag = self._flag, None
        if flag is not None:
            flag.close()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when the flag is raised for nobody, or is not for somebody."""
        if self._flag is not None and self._flag.is_raised is not bool(self._coming):
            raise IntegrityError(f"incoming: {len(self._coming)} on their way, flag raised: {self._flag.is_raised}")


class IncomingRequest:
    """One request on its way."""

    def __init__(self, incoming: IncomingRequests) -> None:
        self._all = incoming

    def end(self) -> None:
        """It needs nobody to make way any more. Again has no effect."""
        self._all.remove(self)


INCOMING: ContextVar[IncomingRequest | None] = ContextVar("acmserve_incoming", default=None)


class IncomingMiddleware:
    """Notes POST requests to `paths` in the `IncomingRequests` of the app's state, where it has any."""

    def __init__(self, app: ASGIApp, paths: Collection[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_wanted = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths
        incoming: IncomingRequests | None = getattr(scope["app"].state, "acm_incoming", None) if is_wanted else None
        if incoming is None:
            await self._app(scope, receive, send)
            return
        request = incoming.add()
        INCOMING.set(request)
        overdue = asyncio.get_running_loop().call_later(MAX_SECONDS, request.end)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                request.end()
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        finally:
            overdue.cancel()
            request.end()


def let_background_in(generate: Generate) -> Generate:
    """The engine client's `generate`, at which a background request is nobody any more to make way for."""

    def tapped(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        request = INCOMING.get()
        if request is not None and is_background(sampling_params):
            request.end()
        return generate(prompt, sampling_params, *args, **kwargs)

    return tapped
