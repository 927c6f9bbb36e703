"""The routes of a session's token budget: set it, see what it would take, take it now, and the episodes it works on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from acmserve.context.eviction.budget_json import budget_value
from acmserve.context.storage.session import Session
from acmserve.server.budget.budgets import set_budget
from acmserve.server.context.server import ContextServer
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import CallerDep, SessionId
from acmserve.server.routes.schemas.budget import BudgetRequest, BudgetView, EpisodeList, Eviction
from acmserve.server.routes.views.budget import episode_list, eviction_view
from acmserve.server.routes.views.storage import storage_view

budget_router = APIRouter(route_class=AcmRoute, tags=["acm: budget"])


@budget_router.get(
    "/sessions/{session_id}/budget",
    operation_id="acm_get_budget",
    summary="Get the budget of a session",
    responses=problems(400, 404),
)
async def get_budget(session_id: SessionId, caller: CallerDep) -> BudgetView:
    """Shows the budget that holds for a session, whose it is, and how many tokens the next prompt has so far."""
    return _budget_view(caller.server, caller.session(session_id))


@budget_router.put(
    "/sessions/{session_id}/budget",
    operation_id="acm_set_budget",
    summary="Set the budget of a session",
    responses=problems(400, 404, 413, 415),
)
async def put_budget(session_id: SessionId, wanted: BudgetRequest, caller: CallerDep) -> BudgetView:
    """Sets the session's budget, in the place of the one that it had. `acm.budget` in a chat request does the same.

    Nothing is evicted now: the next step of a model is, when it would exceed `max_tokens`, or `POST .../evict`.
    """
    server = caller.server
    async with caller.held(session_id) as session:
        budget = server.budgets.parse(wanted.model_dump(exclude_none=True), "budget")
        server.store.save(session, set_budget(session.state, budget))
        return _budget_view(server, session)


@budget_router.delete(
    "/sessions/{session_id}/budget",
    operation_id="acm_delete_budget",
    summary="Remove the budget of a session",
    status_code=204,
    responses=problems(400, 404),
)
async def delete_budget(session_id: SessionId, caller: CallerDep) -> None:
    """Removes the session's own budget. The server's holds then, where it has one. What was evicted stays so."""
    async with caller.held(session_id) as session:
        caller.server.store.save(session, set_budget(session.state, None))


@budget_router.post(
    "/sessions/{session_id}/evict",
    operation_id="acm_evict",
    summary="Evict down to the low watermark",
    responses=problems(400, 404, 409, 413, 415, 503),
)
async def evict(
    session_id: SessionId,
    caller: CallerDep,
    dry_run: Annotated[bool, Query(description="Only plan: say what would go, and change nothing.")] = False,
) -> Eviction:
    """Evicts down to the low watermark of the session's budget, also when `max_tokens` is not reached.

    The answer says what goes by episode and level, and what the next turn costs under either fidelity. The transcript
    keeps everything: only what the model sees changes. The policy `compact` has a model write a summary. A dry run asks
    none, and takes the longest summary there may be.
    """
    server = caller.server
    async with caller.held(session_id) as session:
        before = session.state.omissions
        evicted = await server.evict(session, dry_run=dry_run)
        if evicted.plan.changes and not dry_run:
            server.precompute.note_edit(session)
        view = eviction_view(evicted, server.budgets.meter(session), before, dry_run=dry_run)
        return view.model_copy(update={"storage": storage_view(session)})


@budget_router.get(
    "/sessions/{session_id}/episodes",
    operation_id="acm_list_episodes",
    summary="List the episodes of a session",
    responses=problems(400, 404),
)
async def list_episodes(session_id: SessionId, caller: CallerDep) -> EpisodeList:
    """Lists the episodes marked with `delimiter`, and the work between them, with what is left of each."""
    session = caller.session(session_id)
    return episode_list(session.state, caller.server.budgets.meter(session))


def _budget_view(server: ContextServer, session: Session) -> BudgetView:
    budget = server.budgets.of(session.state)
    source = None if budget is None else "session" if session.state.budget is not None else "server"
    return BudgetView(
        source=source,  # type: ignore[arg-type]
        budget=None if budget is None else budget_value(budget),
        tokens=max(0, server.budgets.meter(session).num_tokens),
        storage=storage_view(session),
    )
