"""Where a server is and who asks, and how its answers become results or exceptions. It sends nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from acmserve.client.calls import ApiCall
from acmserve.client.errors import AcmClientError, UnreadableAnswer, refusal

T = TypeVar("T")
SESSION_HEADER = "X-Session-ID"


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """`base_url` may end with `/v1`, as OpenAI's clients take it, or not, as Anthropic's do."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    cache_salt: str | None = None

    @property
    def root(self) -> str:
        """The address without `/v1`."""
        return self.base_url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """Who asks."""
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return headers | ({} if self.cache_salt is None else {"X-Cache-Salt": self.cache_salt})


def routing_headers(session_id: str) -> dict[str, str]:
    """What a router in front of replicas reads. Nothing where a header cannot say the id: then the path has it."""
    is_plain = session_id.isascii() and session_id.isprintable() and session_id == session_id.strip()
    return {SESSION_HEADER: session_id} if is_plain and session_id else {}


def result_of(call: ApiCall[T], status: int, content: bytes) -> T:
    """What the call is answered with. Raises the exception of an error's status, and `UnreadableAnswer`."""
    if status >= 400:
        raise _refused(status, content)
    try:
        value: Any = json.loads(content) if content else None
    except ValueError as error:
        raise UnreadableAnswer(f"the answer of {call.method} {call.path}", "is no JSON") from error
    return call.read(value)


def _refused(status: int, content: bytes) -> AcmClientError:
    try:
        return refusal(status, json.loads(content))
    except ValueError:
        return refusal(status, content.decode(errors="replace")[:500])
