"""Requests that wait for a session which goes meanwhile find what one that comes now would find.

vLLM's own routes without an engine, ours in front. Whoever holds the session here stands for a tool loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.serve.engine.protocol import UsageInfo

from acmserve.context.session.history import adopt
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from tests.support.routes.held_session import until_they_wait
from tests.support.routes.vendor_app import Handler, make_editor, vendor_client
from tests.support.server.acm_app import FirstSentence

OLD = [{"role": "user", "content": "What was here before?"}, {"role": "assistant", "content": "This."}]
ASKED = {"model": "m", "session_id": "s", "messages": [*OLD, {"role": "user", "content": "Still there?"}]}
SALTED = {"X-Cache-Salt": "s1"}


class Chats(Handler):
    """Answers as vLLM's chat handler and an engine do, and knows with what salt it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.salts: list[str | None] = []

    async def create_chat_completion(self, request: Any, raw_request: Any = None) -> ChatCompletionResponse:
        self.seen.append(list(request.messages))
        self.salts.append(request.cache_salt)
        exchange = CURRENT.get()
        assert exchange is not None
        exchange.acm = {"session_id": exchange.session_id, "receipt": {}, **exchange.fields}
        choice = {"index": 0, "message": {"role": "assistant", "content": "Done ."}, "finish_reason": "stop"}
        return ChatCompletionResponse.model_validate(
            {"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": UsageInfo()}
        )


def app_of(handler: Handler) -> Any:
    return vendor_client(handler, make_editor(FirstSentence())).app


async def behind(app: Any, becomes: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
    """The answer to a request that waited while its session was deleted, or replaced by an import."""
    server: ContextServer = app.state.acm_server
    session = server.store.open("", "s")
    server.store.save(session, adopt(session.state, OLD).state)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
        async with server.sessions.locked(session):
            asking = asyncio.create_task(client.post(path, json=body))
            await until_they_wait(server, 1)
            if becomes != "kept":
                server.delete(session)
            if becomes == "replaced":
                server.store.create("", "s").suite = "another"
        return await asking


@pytest.mark.parametrize("becomes", ["deleted", "replaced", "kept"])
@pytest.mark.parametrize("acm", [{}, {"tools": "sculptor"}], ids=["chat", "tool loop"])
def test_a_chat_that_waited_is_recorded_where_its_session_is_now(becomes: str, acm: dict[str, Any]) -> None:
    """It was answered with the state of the session that had gone, and recorded nowhere. A loop was a 404."""
    app = app_of(Chats())
    response = asyncio.run(behind(app, becomes, ASKED | {"acm": acm}))
    assert response.status_code == 200, response.text
    assert "storage" not in response.json()["acm"]
    server: ContextServer = app.state.acm_server
    session = server.store.get("", "s")
    said = ["What was here before?", "This.", "Still there?", "Done ."]
    assert [str(entry.message["content"]) for entry in session.state.entries] == said
    assert (session.suite == "another") == (becomes == "replaced")
    assert not server.sessions.unshared
    server.identifier.families.check_integrity()


@pytest.mark.parametrize("becomes", ["deleted", "kept"])
def test_a_summary_that_waited_is_one_of_what_is_there_now(becomes: str) -> None:
    """Messages of a session that was deleted meanwhile were summarized."""
    summarizer = FirstSentence()
    app: Any = vendor_client(Chats(), make_editor(summarizer)).app
    body = {"model": "m", "session_id": "s", "conversation": "s", "input": "Still there?"}
    response = asyncio.run(behind(app, becomes, body, "/v1/responses/compact"))
    assert response.status_code == 200, response.text
    ((text, _),) = summarizer.conversations
    assert "Still there?" in text
    assert ("What was here before?" in text) == (becomes == "kept")


@pytest.mark.parametrize("salt", [None, "s2"], ids=["header", "body"])
def test_what_is_kept_of_a_chat_for_later_requests_has_its_salt(salt: str | None) -> None:
    """A context was precomputed without the salt of the header, where the session never found it."""
    handler = Chats()
    client = vendor_client(handler, make_editor(FirstSentence()))
    server: ContextServer = client.app.state.acm_server  # type: ignore[attr-defined]
    server.precompute.in_use = True
    own = {} if salt is None else {"cache_salt": salt}
    client.post("/v1/chat/completions", json=ASKED | own, headers=SALTED).raise_for_status()
    tenant = server.sessions.tenant_of({"x-cache-salt": "s1"}, salt)
    watch = server.precompute._watches.get((tenant, "s"))
    assert watch is not None
    assert watch.frame.fields["cache_salt"] == (salt or "s1")
