"""The server that is evaluated: any that speaks OpenAI's chat completions. It is asked what it can do, never assumed.

    POST /v1/chat/completions   every server             GET /v1/models          which model, and its window
    GET  /v1/acm/sessions       acmserve alone           GET /v1/acm/maps/...    updates of a map, and their tokens
    POST /tokenize              vLLM alone               tokens of a prompt that is not asked

Decision: a refusal (4xx) belongs to the request, so it is a result: a prompt may be too long for the window.
Everything else (no answer, 5xx, 429, a wrong key) says nothing of the sample, so the run stops and can be gone on
with. A server that is busy for a while is asked again first.

Decision: models that reason first take `max_completion_tokens` alone, and no temperature of 0. Every sample would be
refused. So the first refusal that names the one field has the other sent from then on. One that names the temperature
ends the run, with the flag that sets it: a temperature is the user's to choose.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from acmserve.bench.eval.completion import EvalAnswer, read_answer
from acmserve.bench.eval.schedule.retries import seconds_to_wait
from acmserve.bench.harness.run_log import progress
from acmserve.context.maps.update import FULL
from acmserve.errors import AcmError, InvalidRequest, Unavailable

_SECONDS = 1800.0
_NOT_OF_THE_SAMPLE = frozenset({401, 403, 404, 408, 425, 429})
_POLL_SECONDS = 0.5
"""An update takes seconds. Sixteen contexts that wait, and ask more often, take a tenth of a processor."""
_SESSIONS, _MAPS = "/v1/acm/sessions", "/v1/acm/maps"
_MAX_TOKENS, _MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"


class RefusedSample(AcmError):
    """The server refused one request because of what it holds."""


@dataclass(slots=True)
class Target:
    """`root` is the address without `/v1`. `extra` are fields of every request (`temperature`, the vendor's own).

    `sizes` are prompts whose tokens are known, by what was asked. `length_field` bounds an answer.
    """

    root: str
    model: str
    has_acm: bool
    extra: Mapping[str, Any]
    http: httpx.Client = field(repr=False)
    sizes: dict[str, int] = field(default_factory=dict, repr=False)
    length_field: str = _MAX_TOKENS

    @classmethod
    def find(cls, url: str, model: str | None, api_key: str | None, extra: Mapping[str, Any]) -> Self:
        """Ask a server for its model and for acmserve. Raises `Unavailable` where there is none."""
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest("URL", f"{url!a} is no address.", "Give for instance http://localhost:8000/v1.")
        root = url.rstrip("/").removesuffix("/v1").rstrip("/")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        http = httpx.Client(timeout=_SECONDS, headers=headers)
        target = cls(root, model or "", False, extra, http)
        if model is None:
            models = target._get("/v1/models").get("data") or []
            if not models:
                raise InvalidRequest("--model", f"is missing, and {root} lists no model.")
            target.model = str(models[0]["id"])
        target.has_acm = target._knows_sessions()
        return target

    def chat(self, fields: Mapping[str, Any]) -> tuple[EvalAnswer, float]:
        """One answer, and the seconds that it took. Raises `RefusedSample`, `Unavailable` and `InvalidRequest`."""
        answer, seconds = self._ask({"model": self.model, **self.extra, **fields})
        if answer.status_code >= 500 or answer.status_code in _NOT_OF_THE_SAMPLE:
            raise Unavailable(f"{self.root} answered {answer.status_code}: {_said(answer)}")
        if answer.status_code >= 400:
            raise RefusedSample(f"{answer.status_code}: {_said(answer)}")
        try:
            return read_answer(answer.json()), seconds
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Unavailable(f"{self.root} answered no chat completion: {_said(answer)}") from error

    def _ask(self, body: Mapping[str, Any]) -> tuple[httpx.Response, float]:
        """The server's answer to a chat request, and the seconds of the one that it was answered to."""
        while True:
            length_field = self.length_field
            told = {length_field if name == _MAX_TOKENS else name: value for name, value in body.items()}
            answer, seconds = self._send_until_free(told)
            if length_field == _MAX_TOKENS and _is_unsupported(answer, _MAX_COMPLETION_TOKENS):
                self.length_field = _MAX_COMPLETION_TOKENS
                continue
            if body.get("temperature") == 0 and _is_unsupported(answer, "temperature"):
                said = f"is a temperature of 0, which {self.model} does not take ({_said(answer)})."
                raise InvalidRequest("--request", said, """Give --request '{"temperature": 1}'.""")
            return answer, seconds

    def _send_until_free(self, body: Mapping[str, Any]) -> tuple[httpx.Response, float]:
        """Again and again while the server is busy, and says when it will not be."""
        num_sent = 0
        while True:
            begun = time.monotonic()
            answer = self._send("POST", "/v1/chat/completions", body)
            seconds, num_sent = time.monotonic() - begun, num_sent + 1
            wait = seconds_to_wait(answer.status_code, answer.headers, num_sent)
            if wait is None:
                return answer, seconds
            progress(f"{self.root} answered {answer.status_code}: asked again in {wait:g} s")
            time.sleep(wait)

    def forget(self, session: str, salt: str) -> None:
        """Delete a session, so that a long run leaves nothing behind."""
        self._send("DELETE", f"{_SESSIONS}/{session}", None, salt)

    def forget_map(self, name: str, salt: str) -> None:
        """Delete a map, which an earlier run may have taught."""
        self._send("DELETE", f"{_MAPS}/{name}", None, salt)

    def wait_for_map(self, name: str, salt: str) -> tuple[int, int] | None:
        """The tokens that the updates of a map have read and written, once none is under way. None where it is gone."""
        while True:
            answer = self._send("GET", f"{_MAPS}/{name}", None, salt)
            if answer.status_code != 200:
                return None
            found = answer.json()
            if not found["num_pending"]:
                return found["num_read_tokens"], found["num_written_tokens"]
            time.sleep(_POLL_SECONDS)

    def map_changes(self, name: str, salt: str, session: str) -> dict[str, int] | None:
        """How often a map was updated behind answers of a session, in vain included, and what its budget did not hold.

        `num_beyond_budget` are items that were evicted, or new ones that came to a full map where nothing is. None
        where no history is told.
        """
        answer = self._send("GET", f"{_MAPS}/{name}/history", None, salt)
        if answer.status_code != 200:
            return None
        updates = [one for one in answer.json()["data"] if one["kind"] == "model" and one["session_id"] == session]
        new = [note for one in updates for note in one["operations"] if note["kind"] == "ADD"]
        num_beyond = sum(note["refused"] == FULL for note in new) + sum(len(one["evicted"]) for one in updates)
        return {"num_updates": len(updates), "num_beyond_budget": num_beyond}

    def removed_of(self, session: str, salt: str, entries: Collection[int]) -> frozenset[int] | None:
        """Which of these messages the session does not show whole. None where the server does not tell of all."""
        page = f"start={min(entries)}&limit={max(entries) - min(entries) + 1}"
        answer = self._send("GET", f"{_SESSIONS}/{session}/messages?{page}", None, salt)
        rows = answer.json()["data"] if answer.status_code == 200 else ()
        states = {row["index"]: row["state"] for row in rows}
        if not states.keys() >= set(entries):
            return None
        return frozenset(entry for entry in entries if states[entry] != "whole")

    def count(self, fields: Mapping[str, Any]) -> int | None:
        """Tokens of a prompt by the server's own template. None where it has no such route."""
        answer = self._send("POST", "/tokenize", {"model": self.model, **fields})
        return int(answer.json()["count"]) if answer.status_code == 200 else None

    def window(self) -> int | None:
        """Tokens that a context may have. None where the server does not tell, as vLLM does beside its models."""
        answer = self._send("GET", "/v1/models", None)
        try:
            models = answer.json()["data"] if answer.status_code == 200 else ()
            told = next((one.get("max_model_len") for one in models if one["id"] == self.model), None)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return told if isinstance(told, int) else None

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def _knows_sessions(self) -> bool:
        """Whether it lists sessions. A server without keys lists those of a cache salt for clients elsewhere, too."""
        answer = self._send("GET", _SESSIONS, None, "acmserve eval")
        try:
            return answer.status_code == 200 and answer.json()["object"] == "list"
        except (ValueError, TypeError, KeyError):
            return False

    def _get(self, path: str) -> Any:
        answer = self._send("GET", path, None)
        if answer.status_code != 200:
            raise Unavailable(f"{self.root}{path} answered {answer.status_code}: {_said(answer)}")
        return answer.json()

    def _send(self, method: str, path: str, body: Any, salt: str | None = None) -> httpx.Response:
        headers = {} if salt is None else {"X-Cache-Salt": salt}
        try:
            return self.http.request(method, f"{self.root}{path}", json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"{self.root}{path} cannot be reached: {error}") from error


def _is_unsupported(answer: httpx.Response, name: str) -> bool:
    """Whether it is a vendor's refusal of a field that names this one: "unsupported_parameter", "unsupported_value"."""
    return answer.status_code == httpx.codes.BAD_REQUEST and "unsupported_" in answer.text and name in answer.text


def _said(answer: httpx.Response) -> str:
    return " ".join(answer.text.split())[:300]
