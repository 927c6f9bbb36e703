"""Every exception that acmserve raises, as one tree.

A caller who embeds the engine catches `AcmError`. The server maps `InvalidRequest` to HTTP 400, its subclasses to 403,
404 and 409, `Unavailable` and `StorageFailed` to 503. Messages name the bad value and the remedy.
"""

from __future__ import annotations

from typing import ClassVar


class AcmError(Exception):
    """Root of the tree."""


class InvalidRequest(AcmError, ValueError):
    """A request carries a value that acmserve cannot accept. A `ValueError`, which vLLM's server answers with 400.

    `field` is the dotted path of the offending field (`acm.fidelity`), for the error body of the server. `remedy` says
    what to do instead where the message does not say it already. Inside a tool call the field is the argument's name,
    and message and remedy become the tool's result, so that the model can go on.
    """

    def __init__(self, field: str, message: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {message}" + (f" {remedy}" if remedy else ""))
        self.field = field
        self.message = message
        self.remedy = remedy


class NotFound(InvalidRequest):
    """The session, fragment, search result or tool that a request names does not exist."""


class SessionLeft(NotFound):
    """The session was deleted or replaced while a request waited for it. Found anew, the request goes on.

    So it does where something was redacted of which the request holds a summary.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__("session_id", f"{session_id!a} was deleted or redacted meanwhile.", "Send the request again.")


class Forbidden(InvalidRequest):
    """The request is well formed, but whoever sends it may not see the answer."""


class Conflict(InvalidRequest):
    """The request is well formed, but the state of the session forbids it. Nothing was changed."""


class Unavailable(AcmError):
    """A model that the server needs for an answer (for summaries, for embeddings) did not give one: HTTP 503."""


class StorageFailed(AcmError):
    """The sessions' file cannot be read or written now. The server goes on.

    `reason` is short and stable, one of `REASONS`. `problem` and `remedy` are for clients and name no path. The message
    itself is for the operator, and names the file.
    """

    REASONS: ClassVar = ("full", "locked", "read_only", "damaged", "replaced", "failed")

    def __init__(self, where: str, reason: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where} {problem}. {remedy}")
        self.reason = reason
        self.problem = f"the sessions' file {problem}."
        self.remedy = remedy
        self._parts = (where, reason, problem, remedy)

    def bare(self) -> StorageFailed:
        """The same without the frames that it came through, to be kept."""
        return StorageFailed(*self._parts)


class EngineMismatch(AcmError):
    """The installed vLLM does not have the hooks that acmserve was built for. The plugin stays off."""


class MoveRefused(AcmError):
    """This model's KV may not be moved. `reason` is short and stable, and becomes the receipt's `fallback_reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class IntegrityError(AcmError):
    """An invariant of a stateful class is broken. The message prints the numbers that disagree."""


class MalformedRecord(AcmError, ValueError):
    """A line of a rollout record, or of the rewards beside it, cannot be used. `field` is "" for the whole line."""

    def __init__(self, line: int, field: str, problem: str) -> None:
        super().__init__(f"line {line}{f', field {field}' if field else ''}: {problem}")
        self.line = line
        self.field = field
