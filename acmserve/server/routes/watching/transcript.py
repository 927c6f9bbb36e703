"""The routes of a transcript, for whoever looks at a session: what was sent beside what the model sees."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from acmserve.context.storage.session import Session
from acmserve.errors import NotFound
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import Caller, CallerDep, SessionId
from acmserve.server.routes.schemas.transcript import MAX_ROWS, TranscriptMessage, TranscriptPage
from acmserve.server.routes.views.transcript import TranscriptView, transcript_rows

transcript_router = APIRouter(route_class=AcmRoute, tags=["acm: sessions"])

_MAX_INDEX = 2**31


@transcript_router.get(
    "/sessions/{session_id}/messages",
    operation_id="acm_list_messages",
    summary="List the messages of a session",
    responses=problems(400, 404),
)
async def list_messages(
    session_id: SessionId,
    caller: CallerDep,
    start: Annotated[int, Query(ge=0, le=_MAX_INDEX, description="Index of the first message of the page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS, description="Most messages of one page.")] = 1000,
) -> TranscriptPage:
    """Lists messages in short, page by page: their tokens as sent and as shown, and where their KV is.

    `GET .../context` gives the messages themselves, all at once.
    """
    view = _view(caller, caller.session(session_id))
    num_messages = len(view.state.entries)
    rows = await transcript_rows(view, start, start + limit, caller.server.tokenizer)
    return TranscriptPage(data=rows, num_messages=num_messages, has_more=start + limit < num_messages)


@transcript_router.get(
    "/sessions/{session_id}/messages/{index}",
    operation_id="acm_get_message",
    summary="Get one message of a session",
    responses=problems(400, 404),
)
async def get_message(
    session_id: SessionId,
    index: Annotated[int, Path(ge=0, le=_MAX_INDEX, description="Its number, as in `GET .../messages`.")],
    caller: CallerDep,
) -> TranscriptMessage:
    """Shows one message twice: as it was sent, with nothing hidden, and as the model sees it now."""
    view = _view(caller, caller.session(session_id))
    if index >= len(view.state.entries):
        raise NotFound(
            "index",
            f"there is no message {index}, the session has {len(view.state.entries)}.",
            "GET .../messages lists them.",
        )
    return view.message(index, caller.server.tokenizer)


def _view(caller: Caller, session: Session) -> TranscriptView:
    kv = caller.server.sessions.describe_kv(session, caller.server.tokenizer)
    return TranscriptView.of(session.state, kv)
