"""The route class of `/v1/acm`: what every route of ours does before and after its function.

    raw path  /v1/acm/sessions/a%2Fb/context     split at "/" first, decoded then: session "a/b"
    body      bounded, strict JSON (`strict_json`)
    errors    InvalidRequest, Unavailable, FastAPI's validation errors --> `problem`

Decision: a session id may contain any character, also a slash. So paths are matched as they were sent, still
percent-encoded, and only the values taken out of them are decoded. Frameworks decode first, and could not distinguish
the context of session "a" from a session named "a/context". It knows HTTP and FastAPI, not what the routes do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, unquote

from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from acmserve.errors import AcmError
from acmserve.server.http.errors import problem_response
from acmserve.server.http.field_error import explain
from acmserve.server.http.strict_json import StrictRequest

# Of a body with thousands of wrong messages only the first is reported.
MAX_ERRORS = 100
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class AcmRoute(APIRoute):
    """Use as `route_class` of a router."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path as it was sent. Decode the parameters afterwards."""
        if scope["type"] != "http":
            return Match.NONE, {}
        inherited = scope.get("path_params", {})
        match, child = super().matches({**scope, "path": _sent_path(scope), "path_params": {}})
        if match is not Match.NONE:
            own = {name: unquote(value, errors="surrogateescape") for name, value in child["path_params"].items()}
            child["path_params"] = {**inherited, **own}
        return match, child

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:
        """FastAPI's handler with our request in front and our errors behind it."""
        handle: Callable[[Request], Awaitable[Response]] = super().get_route_handler()
        body = None if self.body_field is None else self.body_field.field_info.annotation
        params = _descriptions(self.dependant)

        async def handle_strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            try:
                if request.method in _WITH_BODY and await strict.body():
                    strict.check_media_type()
                    await strict.json()
                return await handle(strict)
            except RequestValidationError as error:
                return problem_response(explain(error.errors()[:MAX_ERRORS], body, params))
            except AcmError as error:
                return problem_response(error)
            except ClientDisconnect:
                return Response(status_code=400)  # read by nobody: the client left before its body was complete

        return handle_strictly


def _sent_path(scope: Scope) -> str:
    """The path still percent-encoded. Whoever rewrote `path` on the way (a mount, a redirect) is followed."""
    path: str = scope["path"]
    raw = scope.get("raw_path")
    if raw is not None:
        sent: str = raw.decode("latin-1")
        if unquote(sent) == path:
            return sent
    return quote(path, safe="/")


def _descriptions(dependant: Any) -> dict[str, str]:
    """What the documentation says about path, query and header parameters, by name in lower case."""
    flat = get_flat_params(dependant)
    return {param.alias.lower(): param.field_info.description or "" for param in flat}
