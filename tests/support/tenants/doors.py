"""The doors of a server: each route through which a prompt reaches the engine, and what became of the prompt there.

What a prompt found is read from the server's counters, not from the clock. Counted are tokens that the prefix cache
had, and tokens that acmserve kept or moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support import http

MODEL = "tiny"
_COUNTERS = {
    "hits": "vllm:prefix_cache_hits_total",
    "kept": "acmserve:kept_tokens_total",
    "moved": "acmserve:moved_tokens_total",
}


@dataclass(frozen=True)
class Found:
    """Tokens of a prompt that were there before it: in the prefix cache, kept in its session, moved in its session."""

    hits: int
    kept: int
    moved: int


@dataclass(frozen=True)
class Guest:
    """Who asks: an API key and a cache salt, and the name of a session. Each is spelled in one way."""

    key: str
    session: str | None = None
    salt: str | None = None
    spelling: str = "header"
    salt_spelling: str = "field"

    @property
    def headers(self) -> dict[str, str]:
        """What goes beside the body."""
        session = {"X-Session-ID": self.session} if self.session and self.spelling == "header" else {}
        salt = {"X-Cache-Salt": self.salt} if self.salt and self.salt_spelling == "header" else {}
        return {"Authorization": f"Bearer {self.key}"} | session | salt

    @property
    def fields(self) -> dict[str, Any]:
        """What goes into the body."""
        salt = {"cache_salt": self.salt} if self.salt and self.salt_spelling == "field" else {}
        if not self.session or self.spelling == "header":
            return salt
        if self.spelling == "field":
            return salt | {"session_id": self.session}
        return salt | {"kv_transfer_params": {"acm": {"session_id": self.session}}}


class Door:
    """One route of the server at `url`."""

    def __init__(self, url: str, path: str) -> None:
        self.url, self.path = url, path
        self._last: Mapping[str, int] | None = None

    def ask(self, guest: Guest, *texts: str) -> Found:
        """Send a conversation of some texts. Between two, nobody else may ask the server anything."""
        before = self._last or self._counted()
        body = self.body(guest, texts) | guest.fields
        answer = http.post(self.url + self.path, json=body, headers=guest.headers)
        assert answer.status_code == 200, answer.text
        after = self._last = self._counted()
        return Found(**{name: after[name] - before[name] for name in _COUNTERS})

    def body(self, guest: Guest, texts: tuple[str, ...]) -> dict[str, Any]:
        """The least that the route wants."""
        messages = [{"role": "user", "content": text} for text in texts]
        if self.path.endswith("batch"):
            return {"model": MODEL, "messages": [messages], "max_tokens": 2}
        if self.path in ("/v1/chat/completions", "/v1/messages", "/invocations"):
            return {"model": MODEL, "messages": messages, "max_tokens": 2}
        if self.path == "/v1/completions":
            return {"model": MODEL, "prompt": "\n".join(texts), "max_tokens": 2}
        if self.path == "/v1/responses":
            return {"model": MODEL, "input": "\n".join(texts), "max_output_tokens": 2}
        if self.path == "/generative_scoring":
            return {"model": MODEL, "query": "\n".join(texts), "items": [" yes"], "label_token_ids": [1, 2]}
        asked = {"model": MODEL, "messages": messages}
        tokens = http.post(f"{self.url}/tokenize", json=asked, headers=guest.headers).json()["tokens"]
        return {"model": MODEL, "token_ids": tokens, "sampling_params": {"max_tokens": 2}}

    def _counted(self) -> Mapping[str, int]:
        """Of all requests so far. The counts of a step come with the next one, so a short request goes in front."""
        plain = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 2}
        http.post(f"{self.url}/v1/chat/completions", json=plain, headers=Guest("key-a").headers).raise_for_status()
        lines = http.get(f"{self.url}/metrics").text.splitlines()
        return {
            name: int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(counter)))
            for name, counter in _COUNTERS.items()
        }
