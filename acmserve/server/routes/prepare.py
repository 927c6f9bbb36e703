"""The routes for callers who know what they will do next: have it computed now, and ask how far that is."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.http.tenants import salt_in
from acmserve.server.precompute.preparation import Preparation
from acmserve.server.routes.dependencies import CallerDep, SessionId
from acmserve.server.routes.edits import batch_of
from acmserve.server.routes.schemas.sessions import PreparationView, PrepareRequest

prepare_router = APIRouter(route_class=AcmRoute, tags=["acm: edits"])


@prepare_router.post(
    "/sessions/{session_id}/prepare",
    operation_id="acm_prepare_edits",
    summary="Precompute the result of edits",
    status_code=202,
    responses=problems(400, 404, 409, 413, 415, 503),
)
async def prepare_edits(
    session_id: SessionId, wanted: PrepareRequest, caller: CallerDep, request: Request, response: Response
) -> PreparationView:
    """Plans edits on a copy of the session, and has the engine compute the result when nobody else needs it.

    Nothing of the session changes. Send the same edits to `POST .../edits` when they are to be made. The next turn then
    finds its prefix computed, exactly. The session's next request drops what is still pending. What was computed until
    then stays. `Location` names the preparation. A summary that the edits take is written now, and used then.
    """
    async with caller.held(session_id) as session:
        made = await caller.server.prepare(session, batch_of(wanted.edits), salt_in(request.headers))
    response.headers["Location"] = f"{request.url.path}/{quote(made.prepare_id)}"
    return _view(made)


@prepare_router.get(
    "/sessions/{session_id}/prepare/{prepare_id}",
    operation_id="acm_get_preparation",
    summary="Ask how far a preparation is",
    responses=problems(400, 404),
)
async def get_preparation(
    session_id: SessionId,
    prepare_id: Annotated[str, Path(min_length=1, max_length=64, description="Id of the preparation.")],
    caller: CallerDep,
) -> PreparationView:
    """Shows one of the last preparations of a session, and the tokens computed for it."""
    session = caller.session(session_id)
    return _view(caller.server.precompute.preparations(session).get(prepare_id))


def _view(made: Preparation) -> PreparationView:
    return PreparationView(
        prepare_id=made.prepare_id,
        status=made.status,
        reason=made.reason,
        computed_tokens=made.computed_tokens,
        ready_tokens=made.ready_tokens,
    )
