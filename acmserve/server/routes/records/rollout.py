"""The route that reads out what a session has recorded for training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from acmserve.context.session.rollout.lines import rollout_lines
from acmserve.errors import NotFound
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import CallerDep, SessionId

rollout_router = APIRouter(route_class=AcmRoute, tags=["acm: sessions"])
MEDIA_TYPE = "application/x-ndjson"
_DESCRIBED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The header, then completions and operations in order.", "content": {MEDIA_TYPE: {}}}
}


@rollout_router.get(
    "/sessions/{session_id}/rollout",
    operation_id="acm_get_rollout",
    summary="Read the rollout record",
    response_class=StreamingResponse,
    responses=problems(400, 404) | _DESCRIBED,
)
async def get_rollout(session_id: SessionId, caller: CallerDep) -> StreamingResponse:
    """Gives what requests with `acm.rollout` have recorded, as JSON lines.

    Each completion has the token ids of its prompt, as they were served, and those that were sampled. Of a prompt only
    what follows the first `kept_tokens` is written. These are the first tokens of its parent's prompt and sample.
    """
    session = caller.session(session_id)
    record = session.state.rollout
    if record.header is None:
        raise NotFound(
            "session_id",
            f"nothing was recorded for session {ascii(session_id)[:60]}.",
            "Send acm.rollout: true with its chat requests.",
        )
    return StreamingResponse(_written(rollout_lines(record, session.session_id)), media_type=MEDIA_TYPE)


def _written(lines: Iterator[dict[str, Any]]) -> Iterator[str]:
    for line in lines:
        yield json.dumps(line, separators=(",", ":")) + "\n"
