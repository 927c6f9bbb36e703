"""The `/v1/acm` routes in an app of their own: real sessions and store, no engine. A token is a word."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.testclient import TestClient

from acmserve.context.eviction.compact import Summary
from acmserve.context.storage.session_store import SessionLimits, SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.context.tools.run import SummaryWanted
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.routes.router import router

SESSIONS = "/v1/acm/sessions"
LOCAL_URL = "http://127.0.0.1"
NUM_DIMENSIONS = 64


class Words:
    """A token is a word with the white space before it. Ids are digests of the words."""

    all_special_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._words: dict[int, str] = {}

    def starts(self, text: str) -> Sequence[int]:
        return [match.start() for match in re.finditer(r"\s*\S+|\s+", text)]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        words = re.findall(r"\s*\S+|\s+", text)
        ids = [int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest()) // 2 for word in words]
        self._words.update(zip(ids, words, strict=True))
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(self._words[token_id] for token_id in token_ids)


class WithoutLive:
    """A summarizer that is not asked behind a conversation."""

    def live_refusal(self, model: str) -> str:
        return "summaries are written elsewhere"

    def live_instruction(self, instructions: str = "") -> str:
        raise AssertionError("asked behind a conversation")

    async def summarize_live(self, live: LivePrompt, shown: Sequence[Message], instructions: str = "") -> Summary:
        raise AssertionError("asked behind a conversation")


class FirstSentence(WithoutLive):
    """Summarizes by the first sentence. Counts its work, and keeps what conversations it was asked for."""

    max_tokens = 30

    def __init__(self) -> None:
        self.num_summaries = 0
        self.conversations: list[tuple[str, str]] = []

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        self.conversations.append((text, instructions))
        return Summary(f"Summary {len(self.conversations)} of {len(text.split())} words.", num_tokens, 6)

    async def summarize(self, wanted: SummaryWanted) -> str:
        self.num_summaries += 1
        return f"{wanted.text.partition('.')[0]}."


class OutOfReach(WithoutLive):
    """A summary model that is down, and no embedder: what a small installation looks like on a bad day."""

    max_tokens = 30

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        raise Unavailable("the summary model did not answer: connection refused")

    async def summarize(self, wanted: SummaryWanted) -> str:
        raise Unavailable(f"the summary model did not answer for {wanted.fragment_id}: connection refused")

    async def embed(self, texts: Sequence[str], tenant: str) -> Sequence[Sequence[float]]:
        raise InvalidRequest("mode", "there is no embedder.", "Search exactly.")


class WordVectors:
    """Embeds a text as the counts of its words, by digest."""

    async def embed(self, texts: Sequence[str], tenant: str) -> Sequence[Sequence[float]]:
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * NUM_DIMENSIONS
        for word in text.lower().split():
            vector[hashlib.blake2b(word.encode(), digest_size=1).digest()[0] % NUM_DIMENSIONS] += 1.0
        return vector


def make_server(
    *,
    down: bool = False,
    has_api_keys: bool = False,
    archive: Archive | None = None,
    tokenizer: Any = None,
    **limits: Any,
) -> ContextServer:
    words = tokenizer or Words()
    return ContextServer(
        SessionStore(SessionLimits(**limits), archive=archive),
        words,
        OutOfReach() if down else FirstSentence(),
        OutOfReach() if down else WordVectors(),
        ServedContexts(words),
        has_api_keys=has_api_keys,
    )


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Those of all apps: reading the signatures of the functions takes longer than most tests. They know no app."""
    app = FastAPI(openapi_url=None)
    app.include_router(router())
    return tuple(app.router.routes)


def make_app(server: ContextServer | None = None) -> FastAPI:
    app = FastAPI(title="acm")
    app.router.routes.extend(_routes())
    app.state.acm_server = server or make_server()
    return app


def make_client(server: ContextServer | None = None, **headers: str) -> TestClient:
    """An exception in a route fails the test: nothing a client sends may cause one."""
    return TestClient(make_app(server), LOCAL_URL, headers=headers, client=("127.0.0.1", 50_000))


def lines(num_lines: int, name: str = "line") -> str:
    """A text of `num_lines` lines of eight tokens each."""
    return "".join(f"{name} {i} says something of no great interest.\n" for i in range(num_lines))


HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": lines(40, "alpha")},
    {"role": "assistant", "content": "Read."},
    {"role": "user", "content": lines(40, "beta")},
]
