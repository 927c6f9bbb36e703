"""Who calls a `/v1/acm` route: the sessions of this server, seen by one tenant.

A session of another API key or cache salt does not exist for the caller. The answer is the 404 of a session that was
never made. It is the only place where routes reach into `app.state`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Path
from starlette.requests import Request

from acmserve.context.storage.session import Session
from acmserve.errors import Forbidden, NotFound
from acmserve.plan.request import MAX_SESSION_ID_CHARS, check_session_id
from acmserve.server.context.server import ContextServer
from acmserve.server.http.local_client import is_local
from acmserve.server.options.map_options import NO_MAPS, NO_MAPS_REMEDY


@dataclass(frozen=True, slots=True)
class Caller:
    """The sessions that one request may see."""

    server: ContextServer
    tenant: str
    is_local: bool = True

    def check_may_list(self) -> None:
        """Raise `Forbidden` where a list would show everybody's names to anybody.

        Whoever knows a session's name reads it, where there is neither key nor salt.
        """
        if not self.tenant and not self.is_local:
            raise Forbidden(
                "authorization",
                "this server asks for no API key, so it lists sessions and maps for clients on its own machine only.",
                "On that machine ask http://127.0.0.1, and no proxy. Elsewhere start it with --api-key KEY, or send a "
                "header X-Cache-Salt with your sessions.",
            )

    def session(self, session_id: str) -> Session:
        """The caller's session of that id. Raises `NotFound`."""
        return self.server.store.get(self.tenant, check_session_id(session_id, "session_id"))

    @asynccontextmanager
    async def held(self, session_id: str) -> AsyncIterator[Session]:
        """The session, for the caller alone: waits for a running turn, tool call or edit. Raises `NotFound`."""
        async with self.server.sessions.locked(self.session(session_id)):
            yield self.session(session_id)


def _caller(
    request: Request,
    x_cache_salt: Annotated[
        str | None,
        Header(max_length=1024, description="Separates sessions (and cached KV) of clients that share an API key."),
    ] = None,
) -> Caller:
    server: ContextServer = request.app.state.acm_server
    return Caller(server, server.sessions.tenant_of(request.headers), is_local(request))


def check_has_maps(request: Request) -> None:
    """Raise `NotFound` where the sessions of one map would live in several processes."""
    server: ContextServer = request.app.state.acm_server
    if not server.shares_maps:
        raise NotFound("external_context_id", NO_MAPS, NO_MAPS_REMEDY)


CallerDep = Annotated[Caller, Depends(_caller)]
SessionId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_SESSION_ID_CHARS,
        description="The session's id, percent-encoded: every character is allowed, `a/b` is written `a%2Fb`.",
    ),
]
