"""Errors as clients see them: one body for every refusal of the `/v1/acm` routes, and the statuses they come with.

    {"error": {"message": ..., "type": "BadRequestError", "param": "edits[0].op", "code": 400, "remedy": ...}}

vLLM's own error shape, so OpenAI clients read it, with the remedy beside it. `remedy` is never empty: an error that
brings none gets the one of its status. It knows errors and statuses, not routes.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from acmserve.errors import AcmError, Conflict, Forbidden, InvalidRequest, NotFound, StorageFailed, Unavailable
from acmserve.server.http.strict_json import BodyTooLarge, NotJson

_STATUSES: tuple[tuple[type[AcmError], HTTPStatus], ...] = (
    (BodyTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (NotJson, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (InvalidRequest, HTTPStatus.BAD_REQUEST),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (StorageFailed, HTTPStatus.SERVICE_UNAVAILABLE),
)
_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.FORBIDDEN: "ForbiddenError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowedError",
    HTTPStatus.CONFLICT: "ConflictError",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "PayloadTooLargeError",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UnsupportedMediaTypeError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}
_REMEDIES = {
    HTTPStatus.BAD_REQUEST: "Correct this field and send the request again; /docs describes every field.",
    HTTPStatus.NOT_FOUND: "GET /v1/acm/sessions lists your sessions, GET .../context the fragments of one.",
    HTTPStatus.CONFLICT: "Nothing was changed. GET .../context shows the session as it is now.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Nothing was changed. Send the request again, or ask for a fold instead.",
}
_MEANINGS = {
    HTTPStatus.BAD_REQUEST: "A field is missing, unknown or out of range, or the body is not JSON.",
    HTTPStatus.FORBIDDEN: "The server asks for no API key, so it lists sessions and maps for its own machine only.",
    HTTPStatus.NOT_FOUND: "The session, tool or fragment does not exist, or belongs to another API key or salt.",
    HTTPStatus.CONFLICT: "The state of the session forbids it; nothing was changed.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is larger than the server reads.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is not declared as JSON.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The model of summaries or embeddings, or the sessions' file, cannot be used now.",
}


class ProblemInfo(BaseModel):
    """What went wrong with a request, and what to do about it."""

    message: str = Field(description="What is wrong, with the value that was sent.")
    type: str = Field(description="The kind of error, as vLLM and OpenAI's clients name it.")
    param: str | None = Field(description="Dotted path of the field, e.g. `edits[0].fragment_id`.")
    code: int = Field(description="The HTTP status.")
    remedy: str = Field(min_length=1, description="What to do instead.")


class Problem(BaseModel):
    """The body of every error."""

    error: ProblemInfo = Field(description="What is wrong.")


def problem_response(error: AcmError) -> JSONResponse:
    """The answer to a request that raised `error`. Raises it again when it is no client's error but ours."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    if status is None:
        raise error
    if isinstance(error, StorageFailed):
        return problem(status, error.problem, None, error.remedy)
    if not isinstance(error, InvalidRequest):
        return problem(status, str(error), None)
    return problem(status, f"{error.field}: {error.message}", error.field, error.remedy)


def problem(status: HTTPStatus, message: str, param: str | None, remedy: str = "", **headers: str) -> JSONResponse:
    """One error body. `headers` join the answer's own."""
    info = ProblemInfo(
        message=message, type=_TYPES[status], param=param, code=status, remedy=remedy.strip() or _REMEDIES[status]
    )
    return JSONResponse(Problem(error=info).model_dump(), status_code=status, headers=headers)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these statuses, for its documentation.

    The range 4XX stands for what the server says before the route is reached (401 without a valid API key).
    """
    documented: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem, "description": _MEANINGS[HTTPStatus(status)]} for status in sorted(statuses)
    }
    return documented | {"4XX": {"description": "Refused by the server itself, e.g. 401 without a valid API key."}}
