"""The routes by which a session leaves for another server, and comes in.

    drained server --GET .../export--> one JSON object --POST .../import--> another server of the same model

What is in an export that somebody made up is checked as far as other routes read it: messages and receipts as well.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from acmserve.context.storage.codecs.session_copy import SessionCopy
from acmserve.context.storage.session import Session
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import InvalidRequest
from acmserve.plan.request import check_session_id
from acmserve.server.context.hand_over import (
    apply_import,
    export_session,
    held_family,
    plan_import,
    read_export,
    tokenize_outputs,
)
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import CallerDep, SessionId
from acmserve.server.routes.schemas.hand_over import SessionExport
from acmserve.server.routes.schemas.messages import Message
from acmserve.server.routes.schemas.sessions import SessionInfo
from acmserve.server.routes.sessions import info_of
from acmserve.server.routes.views.context import context_steps
from acmserve.server.routes.views.turns import turn_list
from acmserve.server.sessions.slices import in_slices

hand_over_router = APIRouter(route_class=AcmRoute, tags=["acm: sessions"])


@hand_over_router.get(
    "/sessions/{session_id}/export",
    operation_id="acm_export_session",
    summary="Export a session",
    responses=problems(400, 404, 409),
    response_model=SessionExport,
)
async def export(session_id: SessionId, caller: CallerDep) -> Response:
    """Gives the whole session for another server: history, edits, budget, branches, side threads and receipts.

    It waits for a running turn, tool call or edit. The session stays here, so delete it once it was imported. A
    redacted text is not in it. Its KV is not, either: the other server computes it with the next request. The answer is
    409 for a branch or a side thread, which goes with its session.
    """
    check_session_id(session_id, "session_id")
    async with held_family(caller.server, caller.tenant, session_id) as family:
        return JSONResponse(export_session(caller.server, family))


@hand_over_router.post(
    "/sessions/{session_id}/import",
    operation_id="acm_import_session",
    summary="Import a session",
    status_code=201,
    responses=problems(400, 404, 409, 413, 415),
)
async def import_session(
    session_id: SessionId,
    given: SessionExport,
    caller: CallerDep,
    replace: Annotated[
        bool, Query(description="Exchange a session of this id, with its branches and side threads, if there is one.")
    ] = False,
) -> SessionInfo:
    """Makes the session that another server has exported. It is the caller's own then, whoever exported it.

    Send the export as it is. The answer is 409 where this server has another model, a session of one of the ids exists
    already, or there is no room. Nothing was changed then. It is 400 for another version of the format and for contents
    that cannot be read.
    """
    server, tenant = caller.server, caller.tenant
    check_session_id(session_id, "session_id")
    copies = read_export(server, given.model_dump(), session_id)
    for index, copy in enumerate(copies):
        await _check_contents(copy, server.tokenizer, f"sessions[{index}]")
    outputs = await tokenize_outputs(server, copies)
    async with AsyncExitStack() as stack:
        is_replaced = replace and server.store.has(tenant, session_id)
        old = await stack.enter_async_context(held_family(server, tenant, session_id)) if is_replaced else []
        session = apply_import(server, tenant, plan_import(server, tenant, copies, outputs, old))
    return info_of(session, caller)


async def _check_contents(copy: SessionCopy, tokenizer: Tokenizer, where: str) -> None:
    """Raise `InvalidRequest` for what the routes that show a session could not show."""
    session = Session("", copy.session_id, copy.state, copy.suite, copy.turns)
    field = f"{where}.state"
    try:
        for entry in copy.state.entries:
            Message.model_validate(entry.message)
        await in_slices(context_steps(session, tokenizer, [None] * len(copy.state.entries)))
        field = f"{where}.turns"
        turn_list(copy.turns, -1, len(copy.turns.turns))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = f"holds a {error.title} that is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        raise InvalidRequest(field, problem, "Export the session again.") from None
