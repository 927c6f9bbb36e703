"""One session as the server holds it, and the bounds on all of them together.

`Session` is a holder whose `state` and `turns`, immutable values, are exchanged by `SessionStore` and by nobody else
while it is held there. It knows neither files nor who asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.history import NO_TURNS, TurnHistory
from acmserve.context.storage.codecs.rows import RowSizes
from acmserve.context.tools.suites import SCULPTOR
from acmserve.errors import InvalidRequest, StorageFailed

Key = tuple[str, str]


def ignore(heard: object) -> None:
    """Nobody listens."""


class SessionUse:
    """Somebody works with a session, which therefore stays in memory."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class Session:
    """`tenant` is "" on a server without API keys. Times are seconds since the epoch.

    `turns` is what was recorded of them. `sizes` are those of the rows of both. The store keeps them. `key` names a
    session, since the same id of another tenant is another session. `unsaved` says why the file has not this state. It
    is None where the file has it, or where there is none. `newest_request` is the number of the one that began last, of
    those that were recorded.
    """

    tenant: str
    session_id: str
    state: SessionState = field(default_factory=SessionState)
    suite: str = SCULPTOR
    turns: TurnHistory = NO_TURNS
    created_at: float = 0.0
    used_at: float = 0.0
    sizes: RowSizes = field(default_factory=RowSizes, repr=False)
    unsaved: StorageFailed | None = None
    newest_request: int = 0
    key: Key = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.key = (self.tenant, self.session_id)

    @property
    def num_bytes(self) -> int:
        """Bytes that count against `SessionLimits.max_bytes`."""
        return self.sizes.num_bytes


@dataclass(frozen=True, slots=True)
class Bound:
    """The most sessions, and the most bytes in sum."""

    max_sessions: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds on the sessions of a server: how many, how many bytes in sum, and how long one may go unused.

    `max_stored_sessions` and `max_stored_bytes` bound the file, which holds at least as much as memory does.
    """

    max_sessions: int = 1024
    max_bytes: int = 256 * 1024 * 1024
    ttl_seconds: float = 7 * 24 * 3600.0
    max_stored_sessions: int = 4096
    max_stored_bytes: int = 4096 * 1024 * 1024

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise InvalidRequest(limit.name, f"must be more than 0, not {value!r}.")

    @property
    def memory(self) -> Bound:
        """That of memory."""
        return Bound(self.max_sessions, self.max_bytes)

    @property
    def file(self) -> Bound:
        """That of the file."""
        return Bound(max(self.max_sessions, self.max_stored_sessions), max(self.max_bytes, self.max_stored_bytes))
