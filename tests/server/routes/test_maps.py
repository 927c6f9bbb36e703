"""The routes of context maps: make, show, edit by hand, pin, export, delete, history; and who may."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.text import render_map
from tests.support.server.acm_app import make_client, make_server

MAPS = "/v1/acm/maps"


@pytest.fixture
def client() -> TestClient:
    return make_client()


def test_a_map_is_made_edited_exported_and_deleted(client: TestClient) -> None:
    made = client.put(f"{MAPS}/corpus", json={"budget": 512, "evolve_steps": 2})
    assert made.status_code == 201
    assert made.json()["text"] == render_map(ContextMap())
    assert (made.json()["budget"], made.json()["evolve_steps"], made.json()["frozen"]) == (512, 2, False)
    text = client.get(f"{MAPS}/corpus/text")
    assert text.headers["content-type"].startswith("text/plain")
    edited = text.text.replace("find it)", "find it)\n388 records, one a line")
    after = client.put(f"{MAPS}/corpus", json={"text": edited})
    assert after.status_code == 200
    assert after.json()["items"] == [
        {"id": "cr-00001", "section": "context_roadmap", "text": "388 records, one a line", "score": 0}
    ]
    assert client.get(f"{MAPS}/corpus").json() == after.json()
    assert client.get(f"{MAPS}/corpus/text").text == after.json()["text"]
    listed = client.get(MAPS).json()["data"]
    assert listed == [{"external_context_id": "corpus", "num_items": 1, "version": 2, "frozen": False}]
    assert client.delete(f"{MAPS}/corpus").status_code == 204
    assert client.get(MAPS).json() == {"data": []}


def test_a_map_is_pinned(client: TestClient) -> None:
    client.put(f"{MAPS}/corpus", json={})
    assert client.put(f"{MAPS}/corpus", json={"pinned": True}).json()["frozen"] is True
    assert client.put(f"{MAPS}/corpus", json={"pinned": False}).json()["frozen"] is False


def test_the_history_tells_every_change(client: TestClient) -> None:
    client.put(f"{MAPS}/a%2Fb", json={"text": "## PARSING SCHEMA\n" + "tab " * 60 + "\n## CONTEXT ROADMAP\nrecords"})
    client.put(f"{MAPS}/a%2Fb", json={"budget": 100})
    first, second = client.get(f"{MAPS}/a%2Fb/history").json()["data"]
    assert (first["kind"], first["evicted"], second["version"]) == ("edit", [], 2)
    assert [item["id"] for item in second["evicted"]] == ["ps-00001"]
    assert second["num_tokens"] <= 100


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "## PLAYBOOK"}, "text"),
        ({"text": "## CONTEXT ROADMAP\n" + "w " * 300 + "\n" + "w " * 300 + "\n" + "w " * 499}, "text"),
        ({"budget": 3}, "budget"),
        ({"budget": "512"}, "budget"),
        ({"evolve_steps": 1_000_001}, "evolve_steps"),
        ({"size": 3}, "size"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_makes_no_map(
    client: TestClient, body: dict[str, object], param: str
) -> None:
    refused = client.put(f"{MAPS}/corpus", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert refused.json()["error"]["remedy"]
    assert client.get(MAPS).json() == {"data": []}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("GET", "/text"), ("GET", "/history")], ids=str
)
def test_a_map_that_is_not_there_is_404(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, f"{MAPS}/nowhere{path}")
    assert answer.status_code == 404
    assert "acm.map" in answer.json()["error"]["remedy"]


def test_a_map_of_another_salt_does_not_exist() -> None:
    server = make_server()
    mine = make_client(server, **{"X-Cache-Salt": "mine"})
    mine.put(f"{MAPS}/corpus", json={})
    other = make_client(server, **{"X-Cache-Salt": "other"})
    assert other.get(f"{MAPS}/corpus").status_code == 404
    assert other.get(MAPS).json() == {"data": []}
    assert mine.get(f"{MAPS}/corpus").status_code == 200
