"""The same as `server.py`, for asynchronous programs: every method but `session` is awaited."""

from __future__ import annotations

import httpx

from acmserve.client.async_session import AsyncSessionHandle
from acmserve.client.calls import ServerCalls
from acmserve.client.connection import SECONDS, AsyncConnection
from acmserve.client.place import ServerPlace
from acmserve.client.views.maps import MapDetails, MapOutline, RecordedMapChange
from acmserve.client.views.sessions import SessionsPage
from acmserve.client.views.turns import UsagePage


class AsyncServerHandle(AsyncConnection):
    """One server, as an API key (and a cache salt) sees it. `http` is a client of your own, which stays open."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        cache_salt: str | None = None,
        timeout: float = SECONDS,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(ServerPlace(base_url, api_key, cache_salt), timeout, http)
        self._calls = ServerCalls()

    def session(self, session_id: str) -> AsyncSessionHandle:
        """A handle of one session, over the same connections. Nothing is asked."""
        place = self.place
        return AsyncSessionHandle(
            place.base_url, session_id, api_key=place.api_key, cache_salt=place.cache_salt, http=self._http
        )

    async def sessions(self, after: str | None = None, limit: int = 20) -> SessionsPage:
        """The sessions, the newest first. A page begins behind the session `after`."""
        return await self._send(self._calls.sessions(after, limit))

    async def usage(self, limit: int = 200) -> UsagePage:
        """What the sessions used last cost so far. Asking is no use of them."""
        return await self._send(self._calls.usage(limit))

    async def maps(self) -> tuple[MapOutline, ...]:
        """The context maps, by id."""
        return await self._send(self._calls.maps())

    async def map(self, map_id: str) -> MapDetails:
        """A map with its items."""
        return await self._send(self._calls.map(map_id))

    async def set_map(
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
        return await self._send(self._calls.set_map(map_id, fields))

    async def delete_map(self, map_id: str) -> None:
        """Delete a map with its history."""
        await self._send(self._calls.delete_map(map_id))

    async def map_history(self, map_id: str) -> tuple[RecordedMapChange, ...]:
        """The last changes of a map, the newest one last."""
        return await self._send(self._calls.map_history(map_id))
