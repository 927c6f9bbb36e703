"""The routes of turns and totals: pages in order, sums, and nothing of another tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from acmserve.context.session.turns.turn import TurnEdit, TurnEnd, TurnOrigin
from acmserve.context.storage.sqlite import Archive
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.ended_request import EndedRequest
from tests.support.recorded_turns import after_all, answered, receipt
from tests.support.server.acm_app import SESSIONS, make_client, make_server

MOVE = {"dst_start": 3, "src_start": 9, "num_tokens": 4}
FOLD = TurnEdit("fold", ("f1a2b3",), 40, "model")


@pytest.fixture
def server() -> ContextServer:
    server = make_server()
    session = server.store.create("", "s")
    moved = answered(receipt=receipt(3, 4, 5, moves=[MOVE]), origin=TurnOrigin("/v1/responses", 2, branch="call_7"))
    store = [FOLD, moved, answered(receipt=None, first_token_seconds=None), answered(), FOLD]
    server.store.record(session, after_all(store))
    return server


def test_turns_come_in_order_with_all_that_is_known(server: ContextServer) -> None:
    found = make_client(server).get(f"{SESSIONS}/s/turns").raise_for_status().json()
    first, second, _ = found["data"]
    assert first == {
        "index": 0,
        "created_at": 1.0,
        "route": "/v1/responses",
        "step": 2,
        "purpose": "answer",
        "branch": "call_7",
        "request_id": "chatcmpl-1",
        "end": "answered",
        "receipt": receipt(3, 4, 5, moves=[MOVE]),
        "edits": [{"kind": "fold", "fragment_ids": ["f1a2b3"], "tokens_saved": 40, "by": "model"}],
        "evictions": [],
        "prompt_tokens": 7,
        "output_tokens": 2,
        "budget_tokens": None,
        "ttft_s": 0.5,
        "total_s": 1.0,
    }
    assert (second["receipt"], second["ttft_s"], second["edits"]) == (None, None, [])
    assert [edit["kind"] for edit in found["waiting"]["edits"]] == ["fold"]


def test_pages_follow_each_other(server: ContextServer) -> None:
    client, seen, after = make_client(server), [], -1
    while True:
        page = client.get(f"{SESSIONS}/s/turns", params={"after": after, "limit": 2}).raise_for_status().json()
        seen += [turn["index"] for turn in page["data"]]
        assert (page["first_index"], page["last_index"]) == (seen[-len(page["data"])], seen[-1])
        if not page["has_more"]:
            break
        after = page["last_index"]
    assert seen == [0, 1, 2]
    end = client.get(f"{SESSIONS}/s/turns?after=2").json()
    assert (end["data"], end["has_more"], end["num_turns"], end["oldest_index"]) == ([], False, 3, 0)


def test_totals_are_sums_and_say_how_savings_are_estimated(server: ContextServer) -> None:
    server.budgets.rates.note(1000, 0, 10.0)
    totals = make_client(server).get(f"{SESSIONS}/s/totals").raise_for_status().json()
    assert totals["session_id"] == "s"
    assert (totals["kept_tokens"], totals["moved_tokens"], totals["computed_tokens"]) == (3, 4, 12)
    assert (totals["prompt_tokens"], totals["turns"], totals["turns_without_receipt"]) == (19, 3, 1)
    assert (totals["edits"], totals["evicted_tokens"], totals["output_tokens"]) == (2, 0, 6)
    saved = totals["saved"]
    assert saved["tokens"] == 4
    assert saved["money"] == pytest.approx(4 * 1.15)
    assert saved["estimate"]["rates"] == "measured"
    assert saved["estimate"]["prefill_rate"] == pytest.approx(100)
    assert saved["estimate"]["prices"]["write"] == 1.25
    assert "stock vLLM" in saved["estimate"]["method"].replace("Stock", "stock")


@pytest.mark.parametrize("path", ["turns", "totals"])
def test_nobody_else_sees_them_and_they_go_with_the_session(server: ContextServer, path: str) -> None:
    client = make_client(server)
    assert client.get(f"{SESSIONS}/s/{path}", headers={"X-Cache-Salt": "other"}).status_code == 404
    client.delete(f"{SESSIONS}/s").raise_for_status()
    assert client.get(f"{SESSIONS}/s/{path}").status_code == 404
    server.store.create("", "s")
    found = client.get(f"{SESSIONS}/s/{path}").raise_for_status().json()
    assert found["num_turns" if path == "turns" else "turns"] == 0


@pytest.mark.parametrize("query", ["after=-2", "after=x", "limit=0", "limit=1001"])
def test_a_wrong_page_is_refused_by_name(server: ContextServer, query: str) -> None:
    answer = make_client(server).get(f"{SESSIONS}/s/turns?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


def test_usage_counts_what_was_in_memory_and_reads_no_file(tmp_path: Path) -> None:
    server = make_server(archive=Archive(tmp_path), max_sessions=1)
    for name in ("a", "b"):
        server.store.record(server.store.create("", name), after_all([answered(), 40]))
    server.store.create("other", "c")
    assert len(server.store) == 1
    found = make_client(server).get("/v1/acm/usage").raise_for_status().json()
    assert [one["session_id"] for one in found["data"]] == ["b", "a"]
    assert (found["num_sessions"], found["has_more"]) == (2, False)
    assert {one["totals"]["background_tokens"] for one in found["data"]} == {40}
    assert len(server.store) == 1
    server.store.close()
    later = make_server(archive=Archive(tmp_path), max_sessions=1)
    found = make_client(later, **{"X-Cache-Salt": "none"}).get("/v1/acm/usage").raise_for_status().json()
    assert (found["data"], found["num_sessions"]) == ([], 0)
    found = make_client(later).get("/v1/acm/usage").raise_for_status().json()
    assert (found["data"], found["num_sessions"]) == ([], 2), "memory holds the session of another tenant"
    later.store.close()


def test_a_session_in_a_turn_is_running_until_it_ends(server: ContextServer) -> None:
    session, client = server.store.get("", "s"), make_client(server)
    turn = server.sessions.turns.begin(session, TurnOrigin())
    dropped = server.sessions.turns.begin(server.store.create("", "t"), TurnOrigin())
    running = {one["session_id"]: one["running"] for one in client.get("/v1/acm/usage").json()["data"]}
    assert running == {"s": True, "t": True}
    turn.ended(EndedRequest("r", receipt(1, 2, 3), 6, 1, None, 1.0, TurnEnd.ABORTED))
    del dropped  # a stream that nobody ever reads
    ended = {one["session_id"]: one for one in client.get("/v1/acm/usage").json()["data"]}
    assert [one["running"] for one in ended.values()] == [False, False]
    assert (ended["s"]["last_turn"]["end"], ended["s"]["totals"]["computed_tokens"]) == ("aborted", 15)


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
def test_a_wrong_limit_is_refused_by_name(server: ContextServer, limit: str) -> None:
    answer = make_client(server).get(f"/v1/acm/usage?limit={limit}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")
