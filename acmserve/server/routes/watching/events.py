"""The routes that tell what happens to sessions while it happens: server-sent events.

    event: changed
    data: {"type": "changed", "session_id": "agent-7", "num_messages": 12, ...}

An event says that something happened. What it is the other routes say. The stream ends when its reader is too slow,
when its session is deleted, and when the server stops.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import StreamingResponse

from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import CallerDep, SessionId
from acmserve.server.sessions.events import EventReader
from acmserve.server.vllm.taps import is_stopping

events_router = APIRouter(route_class=AcmRoute, tags=["acm: sessions"])

MEDIA_TYPE = "text/event-stream"
BEAT_SECONDS = 15.0
"""A comment is sent when nothing happened for so long, so that nobody on the way closes the connection."""
_LOOK_SECONDS = 0.5
"""How often a silent stream looks whether the server stops."""
_DESCRIBED = {
    200: {
        "description": "One event for each thing that happens, as long as the client listens: `opened`, "
        "`turn_started`, `turn_failed`, `changed`, `deleted`, `dropped` (the reader was too slow).",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


@events_router.get(
    "/events",
    operation_id="acm_listen",
    summary="Listen to all sessions",
    response_class=StreamingResponse,
    responses=problems(400, 403, 503) | _DESCRIBED,
)
async def listen(caller: CallerDep, request: Request) -> StreamingResponse:
    """Tells what happens to the sessions of this API key (and cache salt), as server-sent events.

    A reader that does not keep up is told `dropped`, and its stream ends. Read the sessions again, and listen anew.
    """
    caller.check_may_list()
    return _streamed(caller.server.events.read(caller.tenant), request)


@events_router.get(
    "/sessions/{session_id}/events",
    operation_id="acm_listen_to_session",
    summary="Listen to a session",
    response_class=StreamingResponse,
    responses=problems(400, 404, 503) | _DESCRIBED,
)
async def listen_to_session(session_id: SessionId, caller: CallerDep, request: Request) -> StreamingResponse:
    """Tells what happens to one session, as server-sent events. The stream ends when the session is deleted."""
    caller.session(session_id)
    return _streamed(caller.server.events.read(caller.tenant, session_id), request)


def _streamed(reader: EventReader, request: Request) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    written = _written(reader, lambda: is_stopping(request.app))
    return StreamingResponse(written, media_type=MEDIA_TYPE, headers=headers)


async def _written(reader: EventReader, stops: Callable[[], bool]) -> AsyncIterator[str]:
    spoke = time.monotonic()
    with reader:
        while not stops():
            for event in await reader.wait(_LOOK_SECONDS):
                spoke = time.monotonic()
                yield f"event: {event.kind}\ndata: {json.dumps(event.as_json(), separators=(',', ':'))}\n\n"
                if event.kind == "dropped" or (event.kind == "deleted" and reader.session_id is not None):
                    return
            if time.monotonic() - spoke > BEAT_SECONDS:
                spoke = time.monotonic()
                yield ": nothing happened\n\n"
