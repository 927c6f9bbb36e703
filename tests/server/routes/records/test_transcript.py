"""The routes of a transcript: what was sent beside what the model sees, page by page."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.inspector.histories import long_history
from tests.support.server.acm_app import HISTORY, SESSIONS, make_client

PATH = f"{SESSIONS}/s/messages"


@pytest.fixture
def client() -> TestClient:
    client = make_client()
    client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).raise_for_status()
    return client


def edit(client: TestClient, op: str, index: int) -> str:
    edits = [{"op": op, "messages": {"start": index, "end": index + 1}}]
    answer = client.post(f"{SESSIONS}/s/edits", json={"edits": edits}).raise_for_status().json()
    return str(answer["edits"][0]["fragment_id"])


def rows(client: TestClient, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(PATH + query).raise_for_status().json()["data"]
    return found


def test_rows_weigh_what_the_context_weighs(client: TestClient) -> None:
    fragment_id = edit(client, "fold", 1)
    found, context = rows(client), client.get(f"{SESSIONS}/s/context").json()
    assert [row["num_tokens"] for row in found] == [each["num_tokens"] for each in context["messages"]]
    assert sum(row["num_tokens"] for row in found) == context["num_tokens"]
    assert sum(row["num_tokens_original"] for row in found) == context["num_tokens_original"]
    assert [row["state"] for row in found] == ["whole", "hidden", "whole", "whole"]
    assert [row["fragments"] for row in found] == [[], [fragment_id], [], []]
    assert found[1]["preview"].startswith("[folded")
    assert found[3]["preview"].startswith("beta 0 says")


def test_a_message_is_shown_as_sent_and_as_seen(client: TestClient) -> None:
    fragment_id = edit(client, "fold", 1)
    message = client.get(f"{PATH}/1").raise_for_status().json()
    assert message["sent"] == HISTORY[1]
    assert message["shown"]["content"].startswith("[folded")
    assert [(cut["fragment_id"], cut["state"]) for cut in message["cut"]] == [(fragment_id, "folded")]
    client.post(
        f"{SESSIONS}/s/edits", json={"edits": [{"op": "restore", "fragment_id": fragment_id}]}
    ).raise_for_status()
    message = client.get(f"{PATH}/1").json()
    assert message["shown"] == message["sent"] == HISTORY[1]
    assert (message["state"], message["fragments"]) == ("whole", [])


def test_what_was_redacted_is_in_no_answer(client: TestClient) -> None:
    assert "alpha 7 says" in client.get(f"{PATH}/1").text, "the control"
    edit(client, "redact", 1)
    for path in (PATH, f"{PATH}/1"):
        assert "alpha" not in client.get(path).text
    assert rows(client)[1]["num_tokens_original"] < 40


def test_what_was_evicted_stays_in_the_transcript() -> None:
    client = make_client()
    client.post(SESSIONS, json={"session_id": "s", "messages": long_history(4)}).raise_for_status()
    budget = {"max_tokens": 200, "low_watermark": 150, "policy": "recency"}
    client.put(f"{SESSIONS}/s/budget", json=budget).raise_for_status()
    client.post(f"{SESSIONS}/s/evict").raise_for_status()
    evicted = [row for row in rows(client) if row["state"] == "evicted"]
    assert 3 in [row["index"] for row in evicted]
    assert sum(row["num_tokens_original"] - row["num_tokens"] for row in evicted) > 100
    message = client.get(f"{PATH}/3").json()
    assert message["sent"] == long_history(4)[3]
    assert message["shown"] is None


def test_pages_follow_each_other(client: TestClient) -> None:
    first = client.get(f"{PATH}?limit=3").json()
    assert ([row["index"] for row in first["data"]], first["has_more"], first["num_messages"]) == ([0, 1, 2], True, 4)
    rest = client.get(f"{PATH}?start=3&limit=3").json()
    assert ([row["index"] for row in rest["data"]], rest["has_more"]) == ([3], False)
    assert client.get(f"{PATH}?start=9").json()["data"] == []


@pytest.mark.parametrize("query", ["start=-1", "limit=0", "limit=10001", "start=x"])
def test_a_wrong_page_is_refused_by_name(client: TestClient, query: str) -> None:
    answer = client.get(f"{PATH}?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


def test_a_message_that_is_not_there_is_told(client: TestClient) -> None:
    answer = client.get(f"{PATH}/4")
    assert answer.status_code == 404
    assert "no message 4, the session has 4" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["", "/1"])
def test_nobody_else_sees_them(client: TestClient, path: str) -> None:
    assert client.get(PATH + path, headers={"X-Cache-Salt": "other"}).status_code == 404
    assert client.get(PATH + path).status_code == 200, "the control"
