"""Answers that every API server has a part of, put together: lists, health, and the stream of all events.

    GET /v1/acm/sessions   all pages of all owners  --> by age      --> one page
    GET /v1/acm/usage      the first of each owner  --> by last use --> the first of all
    GET /v1/acm/events     the stream of each owner --> one stream, "opened" once all are open
    GET /health            each server's            --> the first that is not well

A part that is missing is no shorter list: the answer is that server's refusal, or 503. It knows the shapes of these
answers, and neither sessions nor tenants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any
from urllib.parse import parse_qs, quote

import httpcore
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from acmserve.server.siblings.sibling_client import Answered, SiblingClient, first_of, left, start_of, target_of

_OK = 200
_PAGE = 1_000
LIST_LIMIT, USAGE_LIMIT = 20, 200
"""What the two routes take where a request names no limit."""
_OPENED = b"event: opened\n"
_DROPPED = b"event: dropped\n"
_END = b"\n\n"
_MAX_WAITING = 64
"""Events that wait for the reader here. More wait where they come from, and there a slow reader is dropped."""


async def gather_sessions(clients: Sequence[SiblingClient], scope: Scope) -> Response:
    """A page of the sessions of all. The first server judges the request."""
    judged = await clients[0].get(scope, target_of(scope))
    query = parse_qs(scope["query_string"].decode("latin-1"))
    after = query.get("after", [None])[-1]
    if judged.status != _OK and not (judged.status == 404 and after is not None):
        return _as_it_came(judged)
    found: list[dict[str, Any]] = []
    for client in clients:
        part = await _all_sessions(client, scope)
        if isinstance(part, Response):
            return part
        found += part
    found.sort(key=lambda session: float(session["created_at"]), reverse=True)
    ids = [session["session_id"] for session in found]
    if after is not None and after not in ids:
        return _as_it_came(judged)
    first = 0 if after is None else ids.index(after) + 1
    limit = int(query.get("limit", [LIST_LIMIT])[-1])
    page = found[first : first + limit]
    named = {"first_id": page[0]["session_id"] if page else None, "last_id": page[-1]["session_id"] if page else None}
    return JSONResponse({"object": "list", "data": page, **named, "has_more": first + limit < len(found)})


async def gather_usage(clients: Sequence[SiblingClient], scope: Scope) -> Response:
    """What the sessions of all that were used last cost."""
    parts = [await client.get(scope, target_of(scope)) for client in clients]
    refusal = next((part for part in parts if part.status != _OK), None)
    if refusal is not None:
        return _as_it_came(refusal)
    values = [part.value() for part in parts]
    data = sorted((each for value in values for each in value["data"]), key=lambda each: -float(each["used_at"]))
    limit = int(parse_qs(scope["query_string"].decode("latin-1")).get("limit", [USAGE_LIMIT])[-1])
    has_more = len(data) > limit or any(value["has_more"] for value in values)
    total = sum(value["num_sessions"] for value in values)
    return JSONResponse({"object": "list", "data": data[:limit], "has_more": has_more, "num_sessions": total})


async def gather_health(clients: Sequence[SiblingClient], scope: Scope) -> Response:
    """The health of the server that is worst off."""
    parts = [await client.get(scope, target_of(scope)) for client in clients]
    return _as_it_came(next((part for part in parts if not _is_well(part)), parts[0]))


async def gather_events(clients: Sequence[SiblingClient], scope: Scope, receive: Receive, send: Send) -> None:
    """The events of all, as they come. One stream that ends ends the whole, as its reader would hear nothing of it."""
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(client.stream(scope, target_of(scope))) for client in clients]
        refused = next((stream for stream in streams if stream.status != _OK), None)
        if refused is not None:
            answered = Answered(refused.status, refused.headers, await refused.aread())
            await _as_it_came(answered)(scope, receive, send)
            return
        await send(start_of(_OK, streams[0].headers))
        came: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_WAITING)
        readers = [asyncio.ensure_future(_read(stream, came)) for stream in streams]
        merging = asyncio.ensure_future(_merge(came, len(streams), send))
        await first_of(merging, asyncio.ensure_future(left(receive)), *readers)


async def _merge(came: asyncio.Queue[bytes | None], num_streams: int, send: Send) -> None:
    """Send whole events of several streams. `None` in the queue is the end of one."""
    num_opened, is_dropped = 0, False
    while not is_dropped and (event := await came.get()) is not None:
        num_opened += event.startswith(_OPENED)
        is_dropped = event.startswith(_DROPPED)
        if not event.startswith(_OPENED) or num_opened == num_streams:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _read(stream: httpcore.Response, came: asyncio.Queue[bytes | None]) -> None:
    unread = b""
    # A sibling that is gone has ended its stream.
    with suppress(httpcore.NetworkError, httpcore.ProtocolError):
        async for chunk in stream.aiter_stream():
            *events, unread = (unread + chunk).split(_END)
            for event in events:
                await came.put(event + _END)
    await came.put(None)


async def _all_sessions(client: SiblingClient, scope: Scope) -> list[dict[str, Any]] | Response:
    path: bytes = scope["raw_path"]
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        answered = await client.get(scope, path + f"?limit={_PAGE}{after}".encode())
        if answered.status != _OK:
            return _as_it_came(answered)
        value = answered.value()
        found += value["data"]
        if not value["has_more"]:
            return found
        after = f"&after={quote(value['last_id'], safe='')}"


def _is_well(part: Answered) -> bool:
    return part.status == _OK and part.value().get("sessions", "ok") == "ok"


def _as_it_came(answered: Answered) -> Response:
    response = Response(answered.body, answered.status)
    response.raw_headers = start_of(answered.status, answered.headers)["headers"]
    return response
