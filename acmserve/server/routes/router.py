"""All routes below `/v1/acm`, as one router for vLLM's app: inside its authentication and its CORS.

    GET    /tools                              the schemas of a tool suite
    POST   /sessions                           make          GET  list
    GET    /sessions/{session_id}              show          DELETE
    GET    /sessions/{session_id}/context      what the model sees now
    GET    /sessions/{session_id}/messages     one row a message, page by page
    GET    /sessions/{session_id}/messages/{index}  as sent, and as the model sees it
    GET    /sessions/{session_id}/events       what happens to it, while it happens
    GET    /events                             what happens to all sessions
    GET    /sessions/{session_id}/turns        what each of the last turns cost, page by page
    GET    /sessions/{session_id}/totals       what all turns cost, and what that saved
    GET    /usage                              what many sessions cost
    GET    /sessions/{session_id}/rollout      what was recorded for training
    GET    /sessions/{session_id}/export       for another server       POST .../import  from another one
    POST   /sessions/{session_id}/tools/{name} execute one tool call
    POST   /sessions/{session_id}/edits        fold, restore, summarize, redact
    POST   /sessions/{session_id}/prepare      precompute the result of edits
    GET    /sessions/{session_id}/prepare/{id} how far that is
    GET    /sessions/{session_id}/budget       show           PUT  set    DELETE
    POST   /sessions/{session_id}/evict        down to the low watermark, or plan it
    GET    /sessions/{session_id}/episodes     the episode graph
    POST   /sessions/{session_id}/branches     make           GET  list
    DELETE /sessions/{session_id}/branches/{branch_id}                POST  .../return
    GET    /maps                               list
    GET    /maps/{external_context_id}         show           PUT  set    DELETE
    GET    /maps/{external_context_id}/text    export         GET  .../history

`app.state.acm_server` must be set before the first request. Everything else below `/v1/acm` ends in an error of the
same shape as the routes' own, not in the framework's.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from acmserve.server.http.errors import problem
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.branches import branches_router
from acmserve.server.routes.budget import budget_router
from acmserve.server.routes.edits import edits_router
from acmserve.server.routes.hand_over import hand_over_router
from acmserve.server.routes.maps import maps_router
from acmserve.server.routes.prepare import prepare_router
from acmserve.server.routes.records.events import events_router
from acmserve.server.routes.records.rollout import rollout_router
from acmserve.server.routes.records.transcript import transcript_router
from acmserve.server.routes.records.turns import turns_router
from acmserve.server.routes.sessions import sessions_router
from acmserve.server.routes.tools import tools_router

PREFIX = "/v1/acm"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


def router() -> APIRouter:
    """The routes, to be included into an app without a prefix."""
    ours = APIRouter(prefix=PREFIX)
    for part in (
        tools_router,
        sessions_router,
        edits_router,
        prepare_router,
        budget_router,
        rollout_router,
        hand_over_router,
        transcript_router,
        events_router,
        turns_router,
        branches_router,
        maps_router,
    ):
        ours.include_router(part)
    elsewhere = APIRouter(prefix=PREFIX, route_class=AcmRoute)
    elsewhere.add_api_route("/{path:path}", _elsewhere, methods=_METHODS, include_in_schema=False)
    ours.routes.extend(elsewhere.routes)
    return ours


def router_without_sessions(num_servers: int) -> APIRouter:
    """What stands below `/v1/acm` where several API servers keep no transcripts: an answer that says so."""
    found = APIRouter(prefix=PREFIX, route_class=AcmRoute)

    async def absent(request: Request) -> Response:
        remedy = "Start it with `acmserve serve`, also with --api-server-count, or leave --api-server-count out."
        said = f"path: {num_servers} API servers keep no transcripts, so there is nothing below {PREFIX}."
        return problem(HTTPStatus.NOT_FOUND, said, "path", remedy)

    found.add_api_route("/{path:path}", absent, methods=_METHODS, include_in_schema=False)
    return found


async def _elsewhere(request: Request) -> Response:
    """A path or a method that no route has."""
    found = [route for route in request.app.routes if isinstance(route, AcmRoute) and route.include_in_schema]
    matching = [route for route in found if route.matches(request.scope)[0] is not Match.NONE]
    path = ascii(request.url.path)[:120]
    if matching:
        allowed = ", ".join(sorted(_methods(matching)))
        status = HTTPStatus.METHOD_NOT_ALLOWED
        return problem(
            status,
            f"method: {request.method} is not allowed at {path}.",
            "method",
            f"Use {allowed} here.",
            Allow=allowed,
        )
    routes = "; ".join(f"{' or '.join(sorted(_methods([route])))} {route.path}" for route in found)
    remedy = f"Percent-encode ids in paths (`/` is `%2F`). The routes: {routes}."
    return problem(HTTPStatus.NOT_FOUND, f"path: there is nothing at {path}.", "path", remedy)


def _methods(routes: list[APIRoute]) -> set[str]:
    return {method for route in routes for method in route.methods}
