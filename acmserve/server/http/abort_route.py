"""`abort_requests` of vLLM on a server with several API keys: refused, because the id of a request says no key.

    POST /inference/v1/abort_requests {"request_ids": ["chatcmpl-job-17"]}
    one key, or none    vLLM ends the request
    several keys        403

A client may choose its id itself, by `X-Request-Id` or `request_id`. So ids are no secrets. vLLM ends every request of
an id, whoever sent it. Decision: nobody keeps who began what for a route that serves other servers.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from acmserve.errors import Forbidden
from acmserve.server.http.errors import problem_response

ABORT = "/abort_requests"


def refuse_aborts(app: FastAPI, theirs: Sequence[BaseRoute]) -> None:
    """Put a refusal beside each route of `theirs` that ends requests by their ids.

    vLLM hides the routes that it has turned off, which say so themselves.
    """
    for route in theirs:
        if isinstance(route, APIRoute) and route.path.endswith(ABORT) and route.include_in_schema:
            app.router.add_api_route(
                route.path, _refuse, methods=["POST"], summary="Refused: there are several API keys", tags=route.tags
            )


async def _refuse() -> JSONResponse:
    """Ends nothing, since a request that is named may be another key's."""
    return problem_response(
        Forbidden(
            "request_ids",
            "name requests of any API key, and this server asks for several.",
            "Close the connection of a request to end it, or start a server for each key.",
        )
    )
