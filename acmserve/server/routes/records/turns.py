"""The routes that show what the turns of a session cost: each of the last ones, and all of them together.

`/usage` says it of many sessions at once, for monitors.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from acmserve.server.budget.savings import estimate_savings
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import CallerDep, SessionId
from acmserve.server.routes.schemas.sessions import MAX_PAGE
from acmserve.server.routes.schemas.turns import TurnList, TurnTotalsView, UsageList
from acmserve.server.routes.views.turns import totals_view, turn_list, usage_list

turns_router = APIRouter(route_class=AcmRoute, tags=["acm: sessions"])
MAX_INDEX = 2**53


@turns_router.get(
    "/sessions/{session_id}/turns",
    operation_id="acm_list_turns",
    summary="List the turns of a session",
    responses=problems(400, 404),
)
async def list_turns(
    session_id: SessionId,
    caller: CallerDep,
    after: Annotated[
        int, Query(ge=-1, le=MAX_INDEX, description="`last_index` of the page before. -1: from the oldest one left.")
    ] = -1,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most turns of one page.")] = 100,
) -> TurnList:
    """Lists the turns of a session, the newest last: receipt, times, and the edits and evictions in front of each.

    A turn is one request to the engine, so a tool loop on the server makes one for each step. The server keeps the last
    turns of a session, at most 512. The totals count all.
    """
    return turn_list(caller.session(session_id).turns, after, limit)


@turns_router.get(
    "/sessions/{session_id}/totals",
    operation_id="acm_get_totals",
    summary="Add up the turns of a session",
    responses=problems(400, 404),
)
async def get_totals(session_id: SessionId, caller: CallerDep) -> TurnTotalsView:
    """Adds up all turns of a session: tokens kept, moved, computed, precomputed and evicted, and what that saved.

    `saved` is an estimate against stock vLLM, and `saved.estimate` says how it is made. `harm` says what moved KV did
    to answers, as far as they were judged. Branches and side threads are sessions of their own.
    """
    session, server = caller.session(session_id), caller.server
    savings = estimate_savings(session.turns.totals, server.budgets.rates, server.prices)
    level = server.auto_levels.of(session.key).name
    return totals_view(session, savings, server.harm.of_session(session.key), level)


@turns_router.get(
    "/usage", operation_id="acm_list_usage", summary="See what sessions cost", responses=problems(400, 403)
)
async def list_usage(
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most sessions of the answer.")] = 200,
) -> UsageList:
    """Shows what the sessions of this API key (and cache salt) cost so far, the one used last first.

    `totals` is what `GET .../totals` adds up. Asking is no use of a session: it does not keep one from expiring, and
    reads nothing from the file.
    """
    caller.check_may_list()
    return usage_list(caller.server, caller.tenant, limit)
