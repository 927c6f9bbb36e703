"""One session as the server holds it, and the bounds on all of them together.

`Session` is the only mutable thing of this layer: a holder whose `state`, an immutable value, is exchanged by
`SessionStore.save` and by nobody else. It knows neither files nor who asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from acmserve.context.session.state import SessionState
from acmserve.context.tools.suites import SCULPTOR
from acmserve.errors import InvalidRequest

Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class Session:
    """`tenant` is "" on a server without API keys. Times are seconds since the epoch.

    `entry_bytes` and `fragment_bytes` hold the size of each entry and fragment as JSON. The store keeps them. `key`
    names a session, since the same id of another tenant is another session.
    """

    tenant: str
    session_id: str
    state: SessionState = field(default_factory=SessionState)
    suite: str = SCULPTOR
    created_at: float = 0.0
    used_at: float = 0.0
    entry_bytes: list[int] = field(default_factory=list, repr=False)
    fragment_bytes: list[int] = field(default_factory=list, repr=False)
    key: Key = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.key = (self.tenant, self.session_id)

    @property
    def num_bytes(self) -> int:
        """Bytes that count against `SessionLimits.max_bytes`."""
        return sum(self.entry_bytes) + sum(self.fragment_bytes)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds on the sessions of a server: how many, how many bytes in sum, and how long one may go unused."""

    max_sessions: int = 1024
    max_bytes: int = 256 * 1024 * 1024
    ttl_seconds: float = 7 * 24 * 3600.0

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_bytes", "ttl_seconds"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidRequest(name, f"must be more than 0, not {value!r}.")

    def expired(self, used_at: float, now: float) -> bool:
        """Whether a session last used then is out of time."""
        return now - used_at >= self.ttl_seconds
