"""What the matrix asks our own routes, beside the client: sessions, a fold, a budget."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.support import http
from tests.support.clients.matrix import require


@dataclass(frozen=True)
class Fold:
    """A fold of the message that has these words. `fragment` is its name, `num_tokens` is what it hides."""

    words: str
    fragment: str
    num_tokens: int


@dataclass(frozen=True)
class SessionsApi:
    """The routes below `/v1/acm/sessions` of one server."""

    url: str

    def ids(self) -> list[str]:
        """Every session that the server lists."""
        return [session["session_id"] for session in http.get(f"{self.url}/v1/acm/sessions?limit=1000").json()["data"]]

    def num_hidden(self, session: str) -> int:
        """How many fragments are hidden."""
        return int(self._get(session, "")["num_hidden_fragments"])

    def context(self, session: str) -> list[dict[str, Any]]:
        """The messages as the model sees them now, those that are gone among them."""
        messages: list[dict[str, Any]] = self._get(session, "/context")["messages"]
        return messages

    def fold(self, session: str, words: str) -> Fold:
        """Fold the message that has these words."""
        messages = self.context(session)
        holders = [each["index"] for each in messages if words in json.dumps(each["message"], ensure_ascii=False)]
        require(holders, f"no message of session {session} has the words {words!r}")
        edit = {"op": "fold", "messages": {"start": holders[0], "end": holders[0] + 1}}
        answer = http.post(f"{self._path(session)}/edits", json={"edits": [edit]})
        require(answer.status_code == 200, f"a fold is answered with {answer.status_code}: {answer.text[:200]}")
        told = answer.json()
        hidden = int(told["tokens_before"]) - int(told["tokens_after"])
        return Fold(words, told["edits"][0]["fragment_id"], hidden)

    def restore(self, session: str, fold: Fold) -> None:
        """Undo a fold."""
        edit = {"op": "restore", "fragment_id": fold.fragment}
        answer = http.post(f"{self._path(session)}/edits", json={"edits": [edit]})
        require(answer.status_code == 200, f"a restore is answered with {answer.status_code}: {answer.text[:200]}")

    def set_budget(self, session: str, max_tokens: int) -> None:
        """Set a budget with the default policy."""
        answer = http.put(f"{self._path(session)}/budget", json={"max_tokens": max_tokens})
        require(answer.status_code == 200, f"a budget is answered with {answer.status_code}: {answer.text[:200]}")

    def _get(self, session: str, rest: str) -> Any:
        answer = http.get(self._path(session) + rest)
        require(answer.status_code == 200, f"GET session {session}{rest}: {answer.status_code}")
        return answer.json()

    def _path(self, session: str) -> str:
        return f"{self.url}/v1/acm/sessions/{quote(session, safe='')}"
