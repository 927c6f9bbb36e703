"""Handles of a server against the real routes: all sessions, what they cost, and context maps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from acmserve.client import errors
from acmserve.client.async_server import AsyncServerHandle
from acmserve.client.server import ServerHandle
from acmserve.server.context.server import ContextServer
from tests.support.client.twins import check_twins
from tests.support.recorded_turns import after_all, answered, receipt
from tests.support.server.acm_app import HISTORY, make_app, make_client, make_server

URL = "http://127.0.0.1"
MAP = "## CONTEXT ROADMAP\nA harbour.\n"


@pytest.fixture
def core() -> ContextServer:
    return make_server()


@pytest.fixture
def server(core: ContextServer) -> Iterator[ServerHandle]:
    with make_client(core) as http:
        yield ServerHandle(f"{URL}/v1", http=http)  # type: ignore[arg-type]


def test_sessions_are_listed_page_by_page(server: ServerHandle) -> None:
    for name in ("a", "b/c", "d"):
        server.session(name).create(HISTORY)
    seen: list[str] = []
    after, more = None, True
    while more:
        page = server.sessions(after, limit=2)
        seen += [session.session_id for session in page.data]
        after, more = page.last_id, page.has_more
    assert seen == ["d", "b/c", "a"]
    assert server.session("b/c").details().num_messages == len(HISTORY)


def test_usage_is_the_totals_of_the_sessions_used_last(server: ServerHandle, core: ContextServer) -> None:
    for name in ("a", "b"):
        server.session(name).create(HISTORY)
    turns = [answered(receipt=receipt(3, 4, 5, fallback_reason="lora"), prompt_tokens=12), 40]
    core.store.record(core.store.get("", "a"), after_all(turns))
    page = server.usage()
    assert [one.session_id for one in page.data] == ["a", "b"]
    one, other = page.data
    totals = server.session("a").totals()
    assert {name: getattr(totals, name) for name in one.totals.__slots__} == {
        name: getattr(one.totals, name) for name in one.totals.__slots__
    }
    assert (one.totals.kept_tokens, one.totals.fallbacks, one.totals.background_tokens) == (3, 1, 40)
    assert one.last_turn is not None
    assert (one.last_turn.computed_tokens, one.last_turn.fallback_reason) == (5, "lora")
    assert (other.last_turn, other.budget_tokens, other.running) == (None, None, False)
    server.session("b").set_budget(600)
    page = server.usage(limit=1)
    assert (page.data[0].session_id, page.data[0].budget_tokens) == ("b", 600)
    assert (page.has_more, page.num_sessions) == (True, 2)


def test_maps_are_set_shown_and_deleted(server: ServerHandle) -> None:
    with pytest.raises(errors.NotFoundError):
        server.map("docs/a")
    made = server.set_map("docs/a", text=MAP, budget=200)
    assert (made.external_context_id, made.budget) == ("docs/a", 200)
    assert [item.section for item in made.items] == ["context_roadmap"]
    assert server.set_map("docs/a", pinned=True).text == made.text
    assert server.map("docs/a").frozen
    assert [(one.external_context_id, one.num_items, one.frozen) for one in server.maps()] == [("docs/a", 1, True)]
    assert [change.kind for change in server.map_history("docs/a")] == ["edit", "edit"]
    with pytest.raises(errors.BadRequestError) as caught:
        server.set_map("docs/a", budget=0)
    assert caught.value.param == "budget"
    server.delete_map("docs/a")
    assert server.maps() == ()


def test_the_asynchronous_handle_does_the_same(core: ContextServer) -> None:
    async def work() -> tuple[Any, ...]:
        transport = httpx.ASGITransport(make_app(core), client=("127.0.0.1", 50_000))
        async with httpx.AsyncClient(transport=transport) as http, AsyncServerHandle(URL, http=http) as server:
            await server.session("a").create(HISTORY)
            await server.set_map("m", text=MAP)
            used = (await server.usage()).data[0].session_id
            listed = (await server.sessions()).data[0].session_id
            pinned = (await server.set_map("m", pinned=True)).pinned
            history = len(await server.map_history("m"))
            await server.delete_map("m")
            return used, listed, pinned, history, await server.maps()

    assert asyncio.run(work()) == ("a", "a", True, 2, ())


def test_both_handles_have_the_same_methods() -> None:
    check_twins(ServerHandle, AsyncServerHandle, plain={"session"})


@pytest.mark.parametrize("url", ["http://[::", "ftp://host", "host:1"])
def test_an_address_that_is_none_is_an_error_of_the_tree(url: str) -> None:
    with ServerHandle(url) as server, pytest.raises(errors.ServerUnreachable):
        server.usage()
