"""The routes that make, list, show and delete sessions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.storage.head import SessionHead, head_of
from acmserve.context.storage.session import Session
from acmserve.errors import NotFound, StorageFailed
from acmserve.plan.request import MAX_SESSION_ID_CHARS, check_session_id
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import Caller, CallerDep, SessionId
from acmserve.server.routes.schemas.sessions import MAX_PAGE, ContextView, NewSession, SessionInfo, SessionList
from acmserve.server.routes.views.context import context_steps, session_info, thread_views
from acmserve.server.routes.views.storage import still_held, storage_view
from acmserve.server.sessions.family import members_of, sides_of
from acmserve.server.sessions.slices import in_slices

sessions_router = APIRouter(route_class=AcmRoute, tags=["acm: sessions"])


@sessions_router.post(
    "/sessions",
    operation_id="acm_create_session",
    summary="Make a session",
    status_code=201,
    responses=problems(400, 409, 413, 415),
)
async def create_session(
    request: Request, response: Response, caller: CallerDep, given: NewSession | None = None
) -> SessionInfo:
    """Makes a session, with the history so far when `messages` are given.

    A chat request with an unknown session id makes its session by itself. This route is for those who want to edit a
    conversation before its first turn, or an id made by the server. `Location` names the new session. When the id is
    taken the answer is 409, and the session that has it stays as it is.
    """
    new = given or NewSession()
    wanted = None if new.session_id is None else check_session_id(new.session_id, "session_id")
    state = adopt(SessionState(), [message.given for message in new.messages or ()]).state
    store = caller.server.store
    session = store.create(caller.tenant, wanted)
    try:
        session.suite = new.suite or session.suite
        store.save(session, state)
    except BaseException:
        # Raised again as it is. An empty session would take the id.
        store.discard(session)
        raise
    response.headers["Location"] = f"{request.url.path}/{quote(session.session_id, safe='')}"
    return info_of(session, caller)


@sessions_router.get(
    "/sessions", operation_id="acm_list_sessions", summary="List sessions", responses=problems(400, 403, 404)
)
async def list_sessions(
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most sessions of one page.")] = 20,
    after: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=MAX_SESSION_ID_CHARS,
            description="`last_id` of the page before. Leave it out for the first page.",
        ),
    ] = None,
) -> SessionList:
    """Lists the sessions of this API key (and cache salt), the newest first, page by page.

    A page begins behind the session named by `after`. Using a session does not change its place in the list. Listing is
    no use of a session: it does not keep one from expiring.

    A server that asks for no API key lists sessions without a cache salt for clients on its own machine only.
    """
    caller.check_may_list()
    found = sorted(caller.server.store.list(caller.tenant), key=lambda head: head.created_at, reverse=True)
    first = 0 if after is None else _index(found, after) + 1
    page = found[first : first + limit]
    return SessionList(
        data=[_head_info(head, caller) for head in page],
        first_id=page[0].session_id if page else None,
        last_id=page[-1].session_id if page else None,
        has_more=first + limit < len(found),
    )


@sessions_router.get(
    "/sessions/{session_id}", operation_id="acm_get_session", summary="Get a session", responses=problems(400, 404)
)
async def get_session(session_id: SessionId, caller: CallerDep) -> SessionInfo:
    """Shows one session without its contents: its suite, its size, its threads, and when it was used last."""
    session = caller.session(session_id)
    sides = sides_of(caller.server.store, caller.tenant, session_id)
    return info_of(session, caller).model_copy(update={"threads": thread_views(sides)})


@sessions_router.delete(
    "/sessions/{session_id}",
    operation_id="acm_delete_session",
    summary="Delete a session",
    status_code=204,
    responses=problems(400, 404, 503),
)
async def delete_session(session_id: SessionId, caller: CallerDep) -> None:
    """Deletes a session with its transcript, once the turn, tool call or edit that is running has ended.

    The id is free then: a later request with it begins a new session. Its branches and its side threads are deleted,
    too, and the branches of those.

    The answer is 503 where the sessions' file cannot be written. The session is gone then, but its text is still in the
    file. The server erases it with the next write that succeeds, or when you delete the session once more.
    """
    server = caller.server
    left: list[SessionHead] = []
    failures: list[StorageFailed] = []
    try:
        async with caller.held(session_id) as session:
            left += members_of(server.store, session)
            failures += _deleted(partial(server.delete, session))
    except NotFound:
        if not server.store.is_erasing(caller.tenant, session_id):
            raise
        failures += _deleted(partial(server.store.delete, caller.tenant, session_id))
    while left:
        with suppress(NotFound):
            async with caller.held(left.pop().session_id) as held:
                left += members_of(server.store, held)
                failures += _deleted(partial(server.delete, held))
    for failure in failures:
        raise failure


@sessions_router.get(
    "/sessions/{session_id}/context",
    operation_id="acm_get_context",
    summary="See what the model sees",
    responses=problems(400, 404),
)
async def get_context(session_id: SessionId, caller: CallerDep) -> ContextView:
    """Shows the conversation as the model sees it now, edits applied, and the fragments cut out of it.

    `messages[].index` is what a range in `POST .../edits` counts by. `fragments[].fragment_id` is what edits and tools
    take. Token counts are those of the texts, without what the chat template adds.
    """
    session = caller.session(session_id)
    tokenizer = caller.server.tokenizer
    kv = caller.server.sessions.describe_kv(session, tokenizer)
    return await in_slices(context_steps(session, tokenizer, kv))


def _deleted(delete: Callable[[], None]) -> list[StorageFailed]:
    """Delete, and note where the file may still hold the text, so that what is left to delete is deleted, too."""
    try:
        delete()
    except StorageFailed as failure:
        return [still_held(failure)]
    return []


def info_of(session: Session, caller: Caller) -> SessionInfo:
    """What is shown of a session, with what the file lacks of it."""
    return _head_info(head_of(session), caller).model_copy(update={"storage": storage_view(session)})


def _head_info(head: SessionHead, caller: Caller) -> SessionInfo:
    precompute = caller.server.precompute
    return session_info(head, precompute.options(head), precompute.is_working(head))


def _index(found: list[SessionHead], session_id: str) -> int:
    for index, session in enumerate(found):
        if session.session_id == session_id:
            return index
    raise NotFound("after", f"there is no session {ascii(session_id)[:60]}.", "List again from the start.")
