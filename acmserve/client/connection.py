"""How requests reach the server: a client of httpx, one's own or made here, and what it raises.

`AsyncConnection` is the same for asynchronous programs. Handles of a server and of its sessions are connections.
"""

from __future__ import annotations

from typing import Self, TypeVar

import httpx

from acmserve.client.calls import ApiCall
from acmserve.client.errors import ServerUnreachable
from acmserve.client.place import ServerPlace, result_of, routing_headers

T = TypeVar("T")
SECONDS = 60.0
_FAILURES = (httpx.RequestError, httpx.InvalidURL)


class Connection:
    """`http` is a client of your own, which stays open. Without it one is made, and closed.

    `route` is the session whose name every request carries in a header, for routers.
    """

    def __init__(self, place: ServerPlace, timeout: float, http: httpx.Client | None, route: str | None = None) -> None:
        self.place = place
        self._headers = place.headers | ({} if route is None else routing_headers(route))
        self._owns_http = http is None
        self._http = httpx.Client(timeout=timeout) if http is None else http

    def close(self) -> None:
        """Close the connections that the handle made."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: ApiCall[T]) -> T:
        url = self.place.root + call.path
        try:
            answer = self._http.request(call.method, url, json=call.body, headers=self._headers)
        except _FAILURES as error:
            raise ServerUnreachable(f"{call.method} {url}: {error}") from error
        return result_of(call, answer.status_code, answer.content)


class AsyncConnection:
    """`http` is a client of your own, which stays open. Without it one is made, and closed.

    `route` is the session whose name every request carries in a header, for routers.
    """

    def __init__(
        self, place: ServerPlace, timeout: float, http: httpx.AsyncClient | None, route: str | None = None
    ) -> None:
        self.place = place
        self._headers = place.headers | ({} if route is None else routing_headers(route))
        self._owns_http = http is None
        self._http = httpx.AsyncClient(timeout=timeout) if http is None else http

    async def close(self) -> None:
        """Close the connections that the handle made."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: ApiCall[T]) -> T:
        url = self.place.root + call.path
        try:
            answer = await self._http.request(call.method, url, json=call.body, headers=self._headers)
        except _FAILURES as error:
            raise ServerUnreachable(f"{call.method} {url}: {error}") from error
        return result_of(call, answer.status_code, answer.content)
