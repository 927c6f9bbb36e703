"""GET /health with what load balancers do not read: the engine and the sessions' file, beside vLLM's status.

    200 {"engine": "running", "sessions": "ok"}                 the file, where there is one, has every session
    200 {"engine": "running", "sessions": "not saved: full"}    the server answers on, and a restart would lose changes
    503 {"engine": "dead", ...}                                 vLLM's own refusal

Decision: the status is vLLM's alone. A server whose disk is full still answers, and taking it out of the rotation would
lose what only its memory has. No count is told, since this route asks for no key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acmserve.context.storage.session_store import SessionStore
from acmserve.server.context.server import ContextServer

HEALTH_PATH = "/health"
Health = Callable[[Request], Awaitable[Response]]


def health_route(vllm_health: Health) -> Health:
    """vLLM's function of the route, with a body."""

    async def health(raw_request: Request) -> Response:
        """Whether the server can answer: the status is for load balancers, the body for people."""
        status = (await vllm_health(raw_request)).status_code
        server: ContextServer | None = getattr(raw_request.app.state, "acm_server", None)
        states = {"engine": "running" if status == HTTPStatus.OK else "dead"}
        if server is not None:
            states["sessions"] = sessions_health(server.store)
        return JSONResponse(states, status_code=status)

    return health


def sessions_health(store: SessionStore) -> str:
    """Whether the file has what the memory has."""
    failure = next((session.unsaved for session in store.behind()), None)
    return "ok" if failure is None else f"not saved: {failure.reason}"
