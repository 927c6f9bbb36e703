"""A client of one session in `/v1/chat/completions`: it resends its history, and uses the routes of the session."""

from __future__ import annotations

from typing import Any

import httpx
from openai import OpenAI

from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session

LOG = log_lines(80)
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You keep the records of a valley."},
    {"role": "user", "content": f"The log begins.\n{LOG}\nThe log ends. Note it."},
]


class Session:
    """One session, as a client sees it: its own history, the routes of the session, `acm` of the last answer."""

    def __init__(self, client: OpenAI, server: str) -> None:
        self.client = client
        self.name = new_session()
        self.url = f"{server}/v1/acm/sessions/{self.name}"
        self.history = list(HISTORY)
        self.acm: dict[str, Any] = {}

    def chat(self, stream: bool = False, **extra: Any) -> dict[str, Any]:
        """Send one turn with the history, append the answer to the history, and return the receipt."""
        body: dict[str, Any] = {"session_id": self.name, "cache_salt": self.name} | extra
        arguments: dict[str, Any] = {"model": MODEL, "messages": self.history, "max_tokens": 8, "extra_body": body}
        if stream:
            chunks = list(self.client.chat.completions.create(**arguments, stream=True))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            acm = next(chunk.model_extra["acm"] for chunk in reversed(chunks) if chunk.model_extra)
            self.history.append({"role": "assistant", "content": text})
        else:
            answer = self.client.chat.completions.create(**arguments)
            acm = answer.model_extra["acm"]
            self.history.append(answer.choices[0].message.model_dump())
        self.acm = acm
        receipt: dict[str, Any] = acm["receipt"]
        return receipt

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def cut(self, num_fragments: int = 4) -> list[str]:
        arguments = {"start_marker": "The log begins.", "end_marker": "The log ends.", "num_fragments": num_fragments}
        made = self.post("tools/fragment_context", {"arguments": arguments}).json()
        assert not made["is_error"], made["result"]
        ids: list[str] = made["fragment_ids"]
        return ids

    def edit(self, *edits: dict[str, Any]) -> Any:
        return self.post("edits", {"edits": list(edits)}).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return http.post(f"{self.url}/{path}", json=body, headers={"X-Cache-Salt": self.name})

    @property
    def context(self) -> Any:
        return http.get(f"{self.url}/context", headers={"X-Cache-Salt": self.name}).raise_for_status().json()
