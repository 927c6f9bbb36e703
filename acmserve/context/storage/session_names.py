"""The ids of a store's sessions: those that it draws, and those that it may hold.

    create("t")             draw: acm-91..
    create("t", "agent-7")  may this store hold it?

Alone a store holds every id. Where several processes share the sessions, each draws ids that it holds itself, and
refuses an id of another process. So a request that went astray never begins a second transcript of one id.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from acmserve.errors import Conflict

_MAX_DRAWS = 4096


class SessionNames:
    """Those of a store that holds every id."""

    def settle(self, tenant: str, wanted: str | None) -> str:
        """The id of a new session: the one that is wanted, or a new one. Raises `Conflict`, see `check`."""
        if wanted is None:
            return self.draw(tenant)
        self.check(tenant, wanted)
        return wanted

    def draw(self, tenant: str) -> str:
        """A new id."""
        return f"acm-{secrets.token_hex(12)}"

    def check(self, tenant: str, session_id: str) -> None:
        """Raise `Conflict` for an id that this store may not hold."""


class SharedNames(SessionNames):
    """Those of one of several stores. `owns` says whether an id of a tenant is this store's."""

    def __init__(self, owns: Callable[[str, str], bool]) -> None:
        self._owns = owns

    def draw(self, tenant: str) -> str:
        """A new id that this store holds. One of a few draws is."""
        for _ in range(_MAX_DRAWS):
            if self._owns(tenant, drawn := super().draw(tenant)):
                return drawn
        raise Conflict("session_id", "none could be drawn: this API server owns no session of yours.", "Send one.")

    def check(self, tenant: str, session_id: str) -> None:
        """Raise `Conflict` for an id of another store."""
        if not self._owns(tenant, session_id):
            raise Conflict(
                "session_id",
                f"{session_id!a} belongs to another API server of this deployment.",
                "Give back or delete its branches before the export, or import into a server with one API server.",
            )
