"""The body of a request as strict JSON, read within bounds.

    bytes --limit--> body --parse--> value --check--> depth, numbers, text      each with its own refusal

It knows neither routes nor sessions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from acmserve.errors import InvalidRequest
from acmserve.server.http.json_value import check_json, too_deep

MAX_BODY_BYTES = 64 * 2**20


class BodyTooLarge(InvalidRequest):
    """More than `MAX_BODY_BYTES`: HTTP 413."""


class NotJson(InvalidRequest):
    """The body says that it is something else than JSON: HTTP 415."""


class StrictRequest(Request):
    """A request whose body is bounded and whose JSON is strict; `body()` and `json()` raise `InvalidRequest`."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The chunks of the body; raises `BodyTooLarge` before the limit is passed."""
        declared = self.headers.get("content-length", "")
        num_bytes = int(declared) if declared.isascii() and declared.isdigit() else 0
        _check_size(num_bytes)
        num_bytes = 0
        async for chunk in super().stream():
            num_bytes += len(chunk)
            _check_size(num_bytes)
            yield chunk

    async def json(self) -> Any:
        """The value of the body, parsed once."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json

    def check_media_type(self) -> None:
        """Raise `NotJson` unless the body is declared as JSON."""
        given = self.headers.get("content-type", "")
        kind, _, subtype = given.partition(";")[0].strip().lower().partition("/")
        if kind != "application" or not (subtype == "json" or subtype.endswith("+json")):
            raise NotJson(
                "Content-Type", f"is {given[:60]!a}; this route reads JSON.", "Send 'Content-Type: application/json'."
            )


def parse_json(body: bytes) -> Any:
    """The value that a body says; raises `InvalidRequest` with the path of what is wrong with it."""
    try:
        value = json.loads(body)
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise InvalidRequest("body", f"is not valid JSON: {error}.", "Send one JSON object in UTF-8.") from None
    check_json(value)
    return value


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_BODY_BYTES:
        raise BodyTooLarge(
            "body",
            f"has {num_bytes:,} bytes or more; at most {MAX_BODY_BYTES:,} are allowed.",
            "Send a shorter history, or large contents as a reference.",
        )
