"""GET /health tells of the engine by vLLM's status, and of the sessions' file in the body. Without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.testclient import TestClient

from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.routes.health import HEALTH_PATH, health_route
from tests.support.context.states import archive_of, conversation
from tests.support.server.acm_app import FirstSentence, OutOfReach, Words


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    store = SessionStore(SessionLimits(), Archive(tmp_path))
    yield store
    store.close()


def client_of(status: int, store: SessionStore | None) -> TestClient:
    """An app whose engine has that status, as vLLM tells it."""

    async def vllm_health(_: Request) -> Response:
        return Response(status_code=status)

    app = FastAPI()
    app.add_api_route(HEALTH_PATH, health_route(vllm_health), response_model=None)
    if store is not None:
        words = Words()
        app.state.acm_server = ContextServer(store, words, FirstSentence(), OutOfReach(), ServedContexts(words))
    return TestClient(app)


@pytest.mark.parametrize(("status", "engine"), [(200, "running"), (503, "dead")])
def test_the_status_is_that_of_the_engine(status: int, engine: str, store: SessionStore) -> None:
    answer = client_of(status, store).get(HEALTH_PATH)
    assert (answer.status_code, answer.json()) == (status, {"engine": engine, "sessions": "ok"})
    assert client_of(status, None).get(HEALTH_PATH).json() == {"engine": engine}, "several API servers hold no sessions"


def test_a_file_that_cannot_be_written_is_told_until_it_heals(store: SessionStore) -> None:
    client, session = client_of(200, store), store.create("", "s")
    archive_of(store)._db.execute("PRAGMA query_only = ON")
    store.save(session, conversation(["hello"]))
    answer = client.get(HEALTH_PATH)
    assert (answer.status_code, answer.json()) == (200, {"engine": "running", "sessions": "not saved: read_only"})
    archive_of(store)._db.execute("PRAGMA query_only = OFF")
    store.save(session, conversation(["hello", "again"]))
    assert client.get(HEALTH_PATH).json()["sessions"] == "ok"
