"""The routes of turns and totals: pages in order, sums, and nothing of another tenant."""

from __future__ import annotations

import pytest

from acmserve.context.session.turns.turn import TurnEdit, TurnOrigin
from acmserve.server.context.server import ContextServer
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
