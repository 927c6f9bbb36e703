"""Handles of sessions against the real routes, without an engine. A token is a word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from acmserve.client import errors
from acmserve.client.async_session import AsyncBranchHandle, AsyncSessionHandle
from acmserve.client.calls import PlannedEdit
from acmserve.client.session import BranchHandle, SessionHandle
from acmserve.server.context.server import ContextServer
from tests.support.client.twins import check_twins
from tests.support.recorded_turns import after_all, answered, receipt
from tests.support.server.acm_app import HISTORY, lines, make_app, make_client, make_server

URL = "http://127.0.0.1"


def steps_of_an_agent(num_steps: int) -> Iterator[dict[str, Any]]:
    """Calls of a tool, and results that an eviction may take."""
    yield {"role": "user", "content": "Read all."}
    for step in range(num_steps):
        call = {"id": f"c{step}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": f"c{step}", "content": lines(20, f"gamma-{step}")}


@pytest.fixture
def server() -> ContextServer:
    return make_server()


@pytest.fixture
def session(server: ContextServer) -> Iterator[SessionHandle]:
    """One with the history of four messages. Its id needs quoting."""
    with make_client(server) as http:
        handle = SessionHandle(f"{URL}/v1/", "a/b c?", http=http)  # type: ignore[arg-type]
        handle.create(HISTORY)
        yield handle


def test_a_session_is_made_shown_and_deleted(session: SessionHandle) -> None:
    made = session.details()
    assert (made.session_id, made.num_messages, made.num_fragments) == ("a/b c?", 4, 0)
    with pytest.raises(errors.ConflictError) as caught:
        session.create()
    assert caught.value.status == 409
    assert caught.value.remedy
    session.delete()
    with pytest.raises(errors.NotFoundError, match="a/b c") as gone:
        session.context()
    assert gone.value.param == "session_id"


def test_ranges_and_fragments_are_folded_summarized_and_restored(session: SessionHandle) -> None:
    whole = session.context()
    folded = session.fold((1, 2), (3, 4), fidelity="reuse")
    assert [edit.state for edit in folded.edits] == ["folded", "folded"]
    assert folded.tokens_before == whole.num_tokens > folded.tokens_after == session.context().num_tokens
    assert folded.next_turn.moved_tokens > 0
    first, second = (edit.fragment_id for edit in folded.edits)
    assert session.restore(first, second).tokens_after == whole.num_tokens
    assert session.context().num_tokens == whole.num_tokens
    shown = session.summarize(first, focus="numbers")
    assert [edit.state for edit in shown.edits] == ["summarized"]
    (fragment,) = (each for each in session.context().fragments if each.fragment_id == first)
    assert (fragment.state, fragment.focus, fragment.messages[0].index) == ("summarized", "numbers", 1)


def test_several_edits_are_all_done_or_none(session: SessionHandle) -> None:
    with pytest.raises(errors.RefusedRequest) as caught:
        session.edit(PlannedEdit("fold", (1, 2)), PlannedEdit("restore", "f000000"))
    assert "edits[1]" in str(caught.value.param)
    assert session.context().fragments == ()


def test_redacted_text_is_gone(session: SessionHandle) -> None:
    (edit,) = session.redact((1, 2)).edits
    assert edit.state == "redacted"
    (fragment,) = session.context().fragments
    assert fragment.preview is None
    assert session.search("alpha 7 says").fragment_ids == ()
    with pytest.raises(errors.RefusedRequest):
        session.restore(edit.fragment_id)


def test_folded_text_is_found_and_a_wrong_call_says_so(session: SessionHandle) -> None:
    session.fold((3, 4))
    assert "beta 7 says" in session.search("beta 7 says").result
    cut = session.call_tool("fragment_context", start_marker="alpha 3", end_marker="alpha 30", num_fragments=2)
    assert cut.is_error is False
    assert len(cut.fragment_ids) == 2
    assert session.call_tool("fold_fragment", fragment_id="nothing").is_error
    with pytest.raises(errors.NotFoundError):
        session.call_tool("no_such_tool")


def test_a_budget_is_set_and_kept_by_evictions(session: SessionHandle) -> None:
    session.delete()
    session.create([*HISTORY[:1], *steps_of_an_agent(6)])
    assert session.budget().budget is None
    state = session.set_budget(300, policy="recency", low_watermark=200)
    assert (state.source, state.tokens > 300) == ("session", True)
    planned = session.evict(dry_run=True)
    assert planned.dry_run
    assert planned.evicted
    assert session.context().num_tokens == session.context().num_tokens_original
    done = session.evict()
    assert not done.dry_run
    assert done.tokens_after == planned.tokens_after < planned.tokens_before
    session.delete_budget()
    assert session.budget().source is None
    with pytest.raises(errors.BadRequestError, match="none_such"):
        session.set_budget(300, policy="none_such")


def test_branches_return_or_are_abandoned(session: SessionHandle) -> None:
    one, other = session.branch("find the port", "Which?"), session.branch("find the host", "Where?")
    assert (one.made.kind, one.made.num_messages, one.details().branch_of) == ("session", 4, session.session_id)
    assert one.context().num_tokens == session.context().num_tokens
    returned = one.give_back("8000.")
    assert (returned.state, returned.message) == ("returned", "8000.")
    other.abandon()
    assert [branch.state for branch in session.branches()] == ["returned"]
    with pytest.raises(errors.NotFoundError):
        other.details()


def test_extra_body_names_the_session_and_what_is_asked_for() -> None:
    handle = SessionHandle(URL, "s", cache_salt="salt")
    assert handle.extra_body() == {"session_id": "s", "cache_salt": "salt"}
    assert handle.extra_body(fidelity="reuse", tools=["sculptor"])["acm"] == {
        "fidelity": "reuse",
        "tools": ["sculptor"],
    }
    handle.close()


def test_who_asks_is_told_and_never_shown() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(401, json={"error": "Unauthorized"})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        handle = SessionHandle(f"{URL}/v1", "s", api_key="key-1", cache_salt="salt", http=http)
        with pytest.raises(errors.AuthenticationError, match="Unauthorized"):
            handle.details()
    assert seen[0].headers["Authorization"] == "Bearer key-1"
    assert seen[0].headers["X-Cache-Salt"] == "salt"
    assert str(seen[0].url) == f"{URL}/v1/acm/sessions/s"
    assert "key-1" not in repr(handle.place)


def test_routers_read_the_session_in_a_header_and_a_branch_goes_where_its_parent_is(server: ContextServer) -> None:
    """Names that a header cannot say stand in the path alone."""
    seen = list[tuple[str, str | None]]()

    def note(request: httpx.Request) -> None:
        seen.append((request.url.path.rpartition("/")[2], request.headers.get("x-session-id")))

    with make_client(server) as http:
        http.event_hooks = {"request": [note], "response": []}  # type: ignore[dict-item]
        session = SessionHandle(URL, "agent 7", http=http)  # type: ignore[arg-type]
        session.create(HISTORY)
        branch = session.branch("find the port", "Which?")
        branch.context()
        branch.give_back("8000.")
        assert branch.extra_headers() == session.extra_headers() == {"X-Session-ID": "agent 7"}
        assert branch.extra_body()["session_id"] == branch.session_id != "agent 7"
        plain, seen_plain = SessionHandle(URL, "né à", http=http), len(seen)  # type: ignore[arg-type]
        plain.create(HISTORY)
    assert [path for path, _ in seen[:seen_plain]] == ["sessions", "branches", "context", "return"]
    assert {header for _, header in seen[:seen_plain]} == {"agent 7"}
    assert plain.extra_headers() == {}
    assert [header for _, header in seen[seen_plain:]] == [None]


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"session_id": 7}', b""])
def test_an_answer_of_another_server_is_an_error(content: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    with httpx.Client(transport=transport) as http, pytest.raises(errors.UnreadableAnswer):
        SessionHandle(URL, "s", http=http).details()


def test_no_answer_is_an_error_of_the_tree() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    told = f"GET {URL}/v1/acm/sessions/s: refused"
    transport = httpx.MockTransport(fail)
    with httpx.Client(transport=transport) as http, pytest.raises(errors.ServerUnreachable, match=told):
        SessionHandle(URL, "s", http=http).details()


def test_the_asynchronous_handle_does_the_same(server: ContextServer) -> None:
    async def work() -> tuple[Any, ...]:
        transport = httpx.ASGITransport(make_app(server), client=("127.0.0.1", 50_000))
        async with httpx.AsyncClient(transport=transport) as http, AsyncSessionHandle(URL, "s", http=http) as session:
            await session.create(HISTORY)
            folded = await session.fold((1, 2))
            found = await session.search("alpha 7 says")
            branch = await session.branch("find the port", "Which?")
            returned = await branch.give_back("8000.")
            with pytest.raises(errors.NotFoundError):
                await branch.details()
            return folded.edits[0].state, found.is_error, returned.state, len(await session.branches())

    assert asyncio.run(work()) == ("folded", False, "returned", 1)


@pytest.mark.parametrize(("one", "other"), [(SessionHandle, AsyncSessionHandle), (BranchHandle, AsyncBranchHandle)])
def test_both_handles_have_the_same_methods(one: type, other: type) -> None:
    check_twins(one, other, plain={"extra_body", "extra_headers"})


def test_episodes_are_shown(session: SessionHandle) -> None:
    begin = {"name": "look", "type": "expl", "action": "start"}
    call = session.call_tool("delimiter", suite="cwl", **begin)
    assert not call.is_error, call.result
    asked = {"id": "c", "type": "function", "function": {"name": "delimiter", "arguments": json.dumps(begin)}}
    session.delete()
    session.create(
        [
            *HISTORY[:2],
            {"role": "assistant", "content": None, "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": "c", "content": call.result},
        ]
    )
    episodes = session.episodes()
    assert [(one.name, one.type, one.state) for one in episodes.data] == [("look", "expl", "active")]
    assert episodes.prologue_end is not None


def test_edits_are_prepared_without_a_change(session: SessionHandle) -> None:
    """Without an engine nothing can be computed, and the preparation says so."""
    before = session.context()
    made = session.prepare(PlannedEdit("fold", (1, 2)))
    assert (made.status, made.reason) == ("dropped", "failed")
    assert session.preparation(made.prepare_id) == made
    assert session.context() == before
    with pytest.raises(errors.ConflictError):
        session.prepare(PlannedEdit("redact", (1, 2)))
    with pytest.raises(errors.NotFoundError):
        session.preparation("p/1")


def test_turns_and_totals_are_read(session: SessionHandle, server: ContextServer) -> None:
    session.fold((1, 2))
    held = server.store.get("", session.session_id)
    turns = [answered(receipt=receipt(3, 4, 5)), answered(receipt=None), 40]
    server.store.record(held, after_all(turns, held.turns))
    page = session.turns(limit=1)
    (turn,) = page.data
    assert turn.receipt is not None
    assert (turn.receipt.moved_tokens, [edit.kind for edit in turn.edits], turn.edits[0].by) == (4, ["fold"], "caller")
    assert (page.has_more, page.num_turns) == (True, 2)
    assert page.last_index is not None
    rest = session.turns(after=page.last_index)
    assert [turn.receipt for turn in rest.data] == [None]
    totals = session.totals()
    assert (totals.turns, totals.edits, totals.prompt_tokens, totals.background_tokens) == (2, 1, 12, 40)
    assert totals.saved.tokens == 4
    assert totals.saved.estimate.prices.currency == "input tokens"
