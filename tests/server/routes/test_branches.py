"""The routes of branches, without an engine: what they make, list, give back and refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.server.context.server import ContextServer
from acmserve.server.sessions.sessions import engine_key
from tests.support.context.branching import opened_in
from tests.support.server.acm_app import HISTORY, SESSIONS, make_client, make_server

NEW = {"description": "find the port", "prompt": "Which port is it?"}
WEATHER = {"id": "w1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.fixture
def server() -> ContextServer:
    return make_server()


@pytest.fixture
def client(server: ContextServer) -> TestClient:
    client = make_client(server)
    client.post(SESSIONS, json={"session_id": "main", "messages": HISTORY}).raise_for_status()
    return client


def make(client: TestClient, session: str = "main") -> Any:
    return client.post(f"{SESSIONS}/{session}/branches", json=NEW)


def contents(client: TestClient, session: str) -> list[Any]:
    return [entry["message"] for entry in client.get(f"{SESSIONS}/{session}/context").json()["messages"]]


def back(client: TestClient, branch: str, message: str = "8000.", session: str = "main") -> Any:
    return client.post(f"{SESSIONS}/{session}/branches/{branch}/return", json={"message": message})


def refusal(response: Any, status: int) -> Any:
    assert response.status_code == status, response.text
    assert response.json()["error"]["remedy"]
    return response.json()["error"]


def test_a_branch_begins_as_its_parent_is_and_works_on_its_own(client: TestClient, server: ContextServer) -> None:
    edit = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    client.post(f"{SESSIONS}/main/edits", json=edit).raise_for_status()
    made = make(client)
    assert made.status_code == 201
    branch = made.json()
    name = branch["branch_id"]
    assert made.headers["location"] == f"{SESSIONS}/{name}"
    assert branch == {
        "object": "acm.branch",
        "branch_id": name,
        "session_id": "main",
        "kind": "session",
        "state": "open",
        "num_calls": 0,
        "num_tokens": 0,
        "num_messages": 4,
        "message": None,
        "storage": None,
        **NEW,
    }
    assert contents(client, name) == contents(client, "main")
    assert client.get(f"{SESSIONS}/{name}").json()["branch_of"] == "main"
    child = server.store.get("", name)
    assert engine_key(child) == ("", "main")
    server.store.save(child, adopt(child.state, [*HISTORY, {"role": "user", "content": "Which?"}]).state)
    assert len(contents(client, name)) == len(contents(client, "main")) + 1
    [listed] = client.get(f"{SESSIONS}/main/branches").json()["data"]
    assert listed["num_tokens"] > 0


def test_what_returns_is_a_call_with_its_result_and_the_branch_is_gone(client: TestClient) -> None:
    first, second = (make(client).json()["branch_id"] for _ in range(2))
    told = back(client, second, "8001.").raise_for_status().json()
    assert (told["branch_id"], told["state"], told["message"]) == (second, "returned", "8001.")
    assert (told["kind"], told["num_messages"]) == ("session", None)
    call, result = contents(client, "main")[-2:]
    assert call["tool_calls"][0]["function"]["name"] == "branch"
    assert result == {"role": "tool", "tool_call_id": second, "content": "8001."}
    assert client.get(f"{SESSIONS}/{second}").status_code == 404
    states = [branch["state"] for branch in client.get(f"{SESSIONS}/main/branches").json()["data"]]
    assert states == ["returned", "open"]
    assert client.delete(f"{SESSIONS}/main/branches/{first}").status_code == 204
    assert contents(client, "main")[-1]["content"] == "8001."
    assert client.get(f"{SESSIONS}/{first}").status_code == 404


def test_a_branch_has_no_branches_and_belongs_to_one_session(client: TestClient) -> None:
    name = make(client).json()["branch_id"]
    assert "has no branches of its own" in refusal(make(client, name), 409)["message"]
    client.post(SESSIONS, json={"session_id": "other"}).raise_for_status()
    assert "is no branch of 'other'" in refusal(back(client, name, session="other"), 404)["message"]
    assert refusal(client.delete(f"{SESSIONS}/other/branches/{name}"), 404)["param"] == "branch_id"
    assert "is no branch of" in refusal(back(client, "main"), 404)["message"]
    assert "is no branch of" in refusal(client.delete(f"{SESSIONS}/main/branches/other"), 404)["message"]
    assert refusal(back(client, "nobody"), 404)["param"] == "session_id"


def test_branches_go_with_their_parent_and_not_to_its_successor(client: TestClient, server: ContextServer) -> None:
    name = make(client).json()["branch_id"]
    assert client.delete(f"{SESSIONS}/main").status_code == 204
    assert client.get(f"{SESSIONS}/{name}").status_code == 404
    client.post(SESSIONS, json={"session_id": "main"}).raise_for_status()
    orphan = make(client).json()["branch_id"]
    server.store.delete("", "main")
    client.post(SESSIONS, json={"session_id": "main"}).raise_for_status()
    assert client.get(f"{SESSIONS}/main/branches").json()["data"] == []
    assert refusal(back(client, orphan), 404)["param"] == "branch_id"


def test_what_a_branch_has_redacted_does_not_come_back(client: TestClient, server: ContextServer) -> None:
    secret = "The vault code is 7741-KESTREL-9920-ALPINE, and nobody else may know it."
    branch = make(client).json()["branch_id"]
    held = server.store.get("", branch)
    server.store.save(held, append_answer(held.state, {"role": "assistant", "content": secret}))
    start = len(contents(client, branch)) - 1
    edit = {"edits": [{"op": "redact", "messages": {"start": start, "end": start + 1}}]}
    client.post(f"{SESSIONS}/{branch}/edits", json=edit).raise_for_status()
    back(client, branch, f"Report: {secret}").raise_for_status()
    assert "KESTREL" not in json.dumps(contents(client, "main"))
    assert "Report: [redacted]" in json.dumps(contents(client, "main"))


def test_nothing_returns_between_a_call_and_its_result(client: TestClient, server: ContextServer) -> None:
    session = server.store.get("", "main")
    waiting = {"role": "assistant", "content": None, "tool_calls": [WEATHER]}
    server.store.save(session, end_turn(append_answer(session.state, waiting)))
    branch = make(client).json()
    assert contents(client, branch["branch_id"]) == contents(client, "main")[:-1]
    assert branch["num_messages"] == 4
    before = session.state
    assert "waits for results" in refusal(back(client, branch["branch_id"]), 409)["message"]
    assert session.state is before
    assert client.get(f"{SESSIONS}/{branch['branch_id']}").status_code == 200


def test_a_branch_of_the_model_is_shown_and_ends_by_itself(client: TestClient, server: ContextServer) -> None:
    name = make(client).json()["branch_id"]
    session = server.store.get("", "main")
    server.store.save(session, opened_in(session.state, "b1"))
    listed = client.get(f"{SESSIONS}/main/branches").json()["data"]
    assert [(branch["kind"], branch["state"]) for branch in listed] == [("call", "open"), ("session", "open")]
    view = client.get(f"{SESSIONS}/main/context").json()
    assert view["branches"] == listed[:1]
    for refused in (make(client), back(client, name)):
        assert "is in a branch: 'find the port'" in refusal(refused, 409)["message"]
    assert "is a call of the model" in refusal(client.delete(f"{SESSIONS}/main/branches/b1"), 409)["message"]
    outcome = client.post(f"{SESSIONS}/main/tools/return", json={"arguments": {"message": "m"}}).json()
    assert (outcome["is_error"], "in the server's own loop only" in outcome["result"]) == (True, True)


def test_text_of_which_a_branch_holds_a_copy_is_not_redacted(client: TestClient) -> None:
    name = make(client).json()["branch_id"]
    edit = {"edits": [{"op": "redact", "messages": {"start": 1, "end": 2}}]}
    assert name in refusal(client.post(f"{SESSIONS}/main/edits", json=edit), 409)["message"]
    client.delete(f"{SESSIONS}/main/branches/{name}").raise_for_status()
    client.post(f"{SESSIONS}/main/edits", json=edit).raise_for_status()


@pytest.mark.parametrize("limits", [{"max_sessions": 1}, {"max_bytes": 6_000}])
def test_a_branch_never_pushes_its_parent_out(limits: dict[str, int]) -> None:
    client = make_client(make_server(**limits))
    client.post(SESSIONS, json={"session_id": "main", "messages": HISTORY}).raise_for_status()
    assert "would push it out" in refusal(make(client), 409)["message"]
    assert [entry["session_id"] for entry in client.get(SESSIONS).json()["data"]] == ["main"]


def test_branches_of_another_tenant_do_not_exist(server: ContextServer, client: TestClient) -> None:
    name = make(client).json()["branch_id"]
    stranger = make_client(server, **{"X-Cache-Salt": "theirs"})
    assert stranger.get(f"{SESSIONS}/main/branches").status_code == 404
    assert back(stranger, name).status_code == 404
    assert stranger.delete(f"{SESSIONS}/main/branches/{name}").status_code == 404
    stranger.post(SESSIONS, json={"session_id": "main"}).raise_for_status()
    assert stranger.get(f"{SESSIONS}/main/branches").json()["data"] == []
    assert back(stranger, name).status_code == 404
    assert client.get(f"{SESSIONS}/{name}").status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "p"}, "description"),
        ({"description": " \n", "prompt": "p"}, "description"),
        ({"description": "d", "prompt": "\t"}, "prompt"),
        ({"description": "d" * 201, "prompt": "p"}, "description"),
        ({"description": "d", "prompt": "p", "depth": 2}, "depth"),
    ],
)
def test_a_wrong_request_names_its_field(client: TestClient, body: dict[str, Any], param: str) -> None:
    assert refusal(client.post(f"{SESSIONS}/main/branches", json=body), 400)["param"] == param


def test_the_next_turn_of_the_parent_names_what_has_returned(client: TestClient) -> None:
    back(client, make(client).json()["branch_id"], "8000. " * 20).raise_for_status()
    (named,) = client.get(f"{SESSIONS}/main/turns").json()["waiting"]["edits"]
    assert (named["kind"], named["by"], named["fragment_ids"]) == ("return", "caller", [])
    assert named["tokens_saved"] <= -20
