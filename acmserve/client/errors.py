"""What a server refuses, as exceptions. The names of the kinds are those that the server's errors have in `type`.

    {"error": {"message": ..., "type": "ConflictError", "param": "edits", "code": 409, "remedy": ...}}     OpenAI, vLLM
    {"type": "error", "error": {"type": "invalid_request_error", "message": ...}}                          Anthropic

Decision: this tree is the client's own, apart from `acmserve.errors`. A client knows nothing of the product. The kind
follows from the status, since Anthropic's routes have other types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

_TOO_LONG = ("prompt is too long:", "This model's maximum context length is")


class AcmClientError(Exception):
    """Root of the tree."""


class ServerUnreachable(AcmClientError):
    """No answer came. The request may have been carried out."""


class UnreadableAnswer(AcmClientError, ValueError):
    """An answer is not what this client knows. `where` is the dotted path of the field."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where} {problem}. Use the client of the server's version.")
        self.where = where


class RefusedRequest(AcmClientError):
    """The server refused. Kinds that have a class of their own are below."""

    known_status: ClassVar[int] = 0

    def __init__(self, status: int, message: str, param: str | None = None, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.status = status
        self.message = message
        self.param = param
        self.remedy = remedy


class BadRequestError(RefusedRequest):
    """A field is missing, unknown or out of range. `param` names it."""

    known_status = 400


class ContextTooLongError(BadRequestError):
    """The prompt does not fit into the model's window."""


class AuthenticationError(RefusedRequest):
    """The API key is missing or wrong."""

    known_status = 401


class ForbiddenError(RefusedRequest):
    """Whoever asks may not see the answer."""

    known_status = 403


class NotFoundError(RefusedRequest):
    """The session, the fragment or the tool does not exist, or belongs to another key or salt."""

    known_status = 404


class MethodNotAllowedError(RefusedRequest):
    """The route does not take this method."""

    known_status = 405


class ConflictError(RefusedRequest):
    """The state of the session forbids it. Nothing was changed."""

    known_status = 409


class PayloadTooLargeError(RefusedRequest):
    """The body is larger than the server reads."""

    known_status = 413


class UnsupportedMediaTypeError(RefusedRequest):
    """The body is not declared as JSON."""

    known_status = 415


class ServiceUnavailableError(RefusedRequest):
    """A model that is needed, or the sessions' file, cannot be used now."""

    known_status = 503


KINDS: Mapping[int, type[RefusedRequest]] = {
    kind.known_status: kind for kind in RefusedRequest.__subclasses__() if kind.known_status
}
"""Status -> class."""


def refusal(status: int, body: object) -> RefusedRequest:
    """The exception for an error body of any route, or for its inner `error`."""
    error = _inner(body)
    message = str(error.get("message") or f"the server answered with status {status}")
    param, remedy = error.get("param"), error.get("remedy")
    kind = KINDS.get(status, RefusedRequest)
    if status == 400 and (error.get("code") == "context_length_exceeded" or message.startswith(_TOO_LONG)):
        kind = ContextTooLongError
    return kind(status, message, None if param is None else str(param), str(remedy or ""))


def refusal_of(error: BaseException) -> RefusedRequest | None:
    """The same for an exception of the `openai` or `anthropic` client. None where it is none of a status."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return None
    return refusal(status, getattr(error, "body", None))


def _inner(body: object) -> Mapping[str, Any]:
    """The error itself. vLLM writes a text in its place where no key was given."""
    if not isinstance(body, Mapping):
        return {"message": body}
    error = body.get("error", body)
    return error if isinstance(error, Mapping) else {"message": error}
