"""The routes of context maps: make, show, edit by hand, pin, export, delete, history, and who may."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse

from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.text import render_map
from acmserve.context.session.state import SessionState
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.sqlite import Archive
from acmserve.server.app.paths import CHAT_PATH
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.updates import MapUpdates
from acmserve.server.options.map_options import MapOptions
from tests.support.routes.vendor_app import Handler, make_editor, vendor_client
from tests.support.server.acm_app import FirstSentence, make_client, make_server

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


def test_a_map_that_the_file_lacks_says_so_until_it_is_written(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    server = make_server(archive=archive)
    server.maps = Maps(MapUpdates(MapStore(archive.maps), MapRules(server.tokenizer)))
    client = make_client(server)
    assert client.put(f"{MAPS}/corpus", json={}).json()["storage"] is None
    archive._db.execute("PRAGMA query_only = ON")
    for answer in (client.put(f"{MAPS}/corpus", json={"pinned": True}), client.get(f"{MAPS}/corpus")):
        assert answer.status_code == 200
        assert answer.json()["pinned"] is True
        assert (answer.json()["storage"]["saved"], answer.json()["storage"]["reason"]) == (False, "read_only")
        assert "a restart may lose it" in answer.json()["storage"]["warning"]
        assert str(tmp_path) not in answer.text
    turn = server.maps.begin(server.store.open("", "s"), MapOptions("corpus"), SessionState())
    assert turn is not None
    assert turn.fields["map"]["storage"]["reason"] == "read_only"
    made = client.put(f"{MAPS}/other", json={})
    assert (made.status_code, made.json()["storage"]["reason"]) == (201, "read_only")
    archive._db.execute("PRAGMA query_only = OFF")
    assert client.put(f"{MAPS}/corpus", json={"pinned": False}).json()["storage"] is None
    assert client.get(f"{MAPS}/other").json()["storage"] is None
    server.store.close()


def test_a_request_that_fails_leaves_no_map() -> None:
    handler = Handler()
    client = vendor_client(handler, make_editor(FirstSentence()))
    maps = client.app.state.acm_server.maps  # type: ignore[attr-defined]
    body = {"model": "m", "session_id": "s", "messages": [{"role": "user", "content": "How many?"}]}
    body |= {"acm": {"map": {"external_context_id": "corpus"}}}
    handler.error = ErrorResponse(error=ErrorInfo(message="too long", type="BadRequestError", code=400))
    assert client.post(CHAT_PATH, json=body).status_code == 400
    assert maps.store.list("") == []
    handler.error = None
    assert client.post(CHAT_PATH, json=body).status_code == 200
    assert [held.key[1] for held in maps.store.list("")] == ["corpus"]


def test_a_redacted_text_leaves_old_copies_of_a_map_and_those_go_with_the_session() -> None:
    handler, secret = Handler(), "the safe opens with cormorant 0451"
    client = vendor_client(handler, make_editor(FirstSentence()))
    maps = client.app.state.acm_server.maps  # type: ignore[attr-defined]
    client.put(f"{MAPS}/corpus", json={"text": f"## CONTEXT ROADMAP\na log: {secret}"})
    messages = [{"role": "user", "content": secret}]
    body = {"model": "m", "session_id": "s", "acm": {"map": {"external_context_id": "corpus", "placement": "tail"}}}
    assert client.post(CHAT_PATH, json=body | {"messages": messages}).status_code == 200
    assert json.dumps(handler.seen[-1]).count(secret) == 2
    redaction = {"edits": [{"op": "redact", "messages": {"start": 0, "end": 1}}]}
    assert client.post("/v1/acm/sessions/s/edits", json=redaction).status_code == 200
    client.put(f"{MAPS}/corpus", json={"text": "## CONTEXT ROADMAP\na log"})
    messages += [{"role": "assistant", "content": "Done ."}, {"role": "user", "content": "How long is it?"}]
    assert client.post(CHAT_PATH, json=body | {"messages": messages}).status_code == 200
    shown = json.dumps(handler.seen[-1])
    assert "a log: [redacted]" in shown
    assert secret not in shown
    assert client.delete("/v1/acm/sessions/s").status_code == 204
    assert not maps.reads
