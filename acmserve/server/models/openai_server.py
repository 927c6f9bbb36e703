"""A server elsewhere that speaks OpenAI's protocol: where summaries or embeddings come from if not made here.

Two kinds of failure are distinguished. A request that the server refuses (too long a text) is `InvalidRequest`, so that
the model or the client can ask for less. A server that cannot be reached, is overloaded or wants another key is
`Unavailable`. Neither says the key, or a password inside the URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from acmserve.errors import InvalidRequest, Unavailable

_REFUSED = (400, 413, 422)
_MAX_ECHO_CHARS = 300


class OpenAIServer:
    """`url` is the base, with or without `/v1`. `purpose` begins the errors, `field` names what a refusal is about."""

    def __init__(self, url: str, api_key: str | None, *, purpose: str, field: str, timeout_seconds: float) -> None:
        base = url.rstrip("/")
        self._base = base if base.endswith("/v1") else f"{base}/v1"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._who = f"the server for {purpose} ({_public(base)})"
        self._field = field
        self._timeout_seconds = timeout_seconds

    async def post(self, path: str, payload: Mapping[str, Any]) -> Any:
        """The JSON answer to a POST of `payload`. Raises InvalidRequest or Unavailable."""
        return await self._request("POST", path, dict(payload))

    async def first_model(self) -> str:
        """The first model that the server lists."""
        listed = await self._request("GET", "models")
        try:
            return str(listed["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise self.unusable("no list of models") from error

    def unusable(self, answer: str) -> Unavailable:
        """The error for an answer that is not what the protocol says."""
        return Unavailable(f"{self._who} answered with {answer}")

    async def _request(self, method: str, path: str, payload: dict[str, Any] | None = None) -> Any:
        try:
            async with httpx.AsyncClient(timeout=self._timeout_seconds, headers=self._headers) as client:
                response = await client.request(method, f"{self._base}/{path}", json=payload)
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._who} cannot be reached: {type(error).__name__}") from error
        if response.status_code in _REFUSED:
            raise InvalidRequest(self._field, f"was refused by {self._who}: {response.text[:_MAX_ECHO_CHARS]}")
        if response.status_code != 200:
            raise self.unusable(f"HTTP status {response.status_code}")
        try:
            return response.json()
        except ValueError as error:
            raise self.unusable("something that is not JSON") from error


def _public(url: str) -> str:
    parsed = httpx.URL(url)
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"{parsed.scheme}://{parsed.host}{port}"
