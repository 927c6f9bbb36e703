"""A server, for a program that looks at all of its sessions, or at its context maps.

    server = ServerHandle("http://localhost:8000")
    for session in server.usage().data: ...
    server.session("agent-7").fold((4, 9))

What is about one session is in `session.py`. `async_server.py` has the same for asynchronous programs.
"""

from __future__ import annotations

import httpx

from acmserve.client.calls import ServerCalls
from acmserve.client.connection import SECONDS, Connection
from acmserve.client.place import ServerPlace
from acmserve.client.session import SessionHandle
from acmserve.client.views.maps import MapDetails, MapOutline, RecordedMapChange
from acmserve.client.views.sessions import SessionsPage
from acmserve.client.views.turns import UsagePage


class ServerHandle(Connection):
    """One server, as an API key (and a cache salt) sees it. `http` is a client of your own, which stays open."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        cache_salt: str | None = None,
        timeout: float = SECONDS,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(ServerPlace(base_url, api_key, cache_salt), timeout, http)
        self._calls = ServerCalls()

    def session(self, session_id: str) -> SessionHandle:
        """A handle of one session, over the same connections. Nothing is asked."""
        place = self.place
        return SessionHandle(
            place.base_url, session_id, api_key=place.api_key, cache_salt=place.cache_salt, http=self._http
        )

    def sessions(self, after: str | None = None, limit: int = 20) -> SessionsPage:
        """The sessions, the newest first. A page begins behind the session `after`."""
        return self._send(self._calls.sessions(after, limit))

    def usage(self, limit: int = 200) -> UsagePage:
        """What the sessions used last cost so far. Asking is no use of them."""
        return self._send(self._calls.usage(limit))

    def maps(self) -> tuple[MapOutline, ...]:
        """The context maps, by id."""
        return self._send(self._calls.maps())

    def map(self, map_id: str) -> MapDetails:
        """A map with its items."""
        return self._send(self._calls.map(map_id))

    def set_map(
        self,
        map_id: str,
        *,
        text: str | None = None,
        budget: int | None = None,
        evolve_steps: int | None = None,
        pinned: bool | None = None,
    ) -> MapDetails:
        """Make a map, or change it. What is None stays as it is."""
        fields = {"text": text, "budget": budget, "evolve_steps": evolve_steps, "pinned": pinned}
        return self._send(self._calls.set_map(map_id, fields))

    def delete_map(self, map_id: str) -> None:
        """Delete a map with its history."""
        self._send(self._calls.delete_map(map_id))

    def map_history(self, map_id: str) -> tuple[RecordedMapChange, ...]:
        """The last changes of a map, the newest one last."""
        return self._send(self._calls.map_history(map_id))
