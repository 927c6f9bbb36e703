"""What the `/v1/acm` routes do: sessions, what the model sees, tool calls, edits, and who may see what."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.testclient import TestClient

from acmserve.context.session.history import adopt, append_answer, append_internal
from acmserve.context.tools.suites import SUITES, suite_tools
from acmserve.server.context.server import ContextServer
from tests.support.routes.held_session import until_they_wait
from tests.support.server.acm_app import HISTORY, SESSIONS, FirstSentence, lines, make_app, make_client, make_server

ODD_IDS = ["a/b", "a/context", "a/tools/fold_fragment", "/", "a b?c#d", "100%", "%2F", "Zoë 🦀", "\n", "..", "x" * 256]


@pytest.fixture
def server() -> ContextServer:
    return make_server()


@pytest.fixture
def client(server: ContextServer) -> TestClient:
    return make_client(server)


def made(client: TestClient, session_id: str = "s", **fields: Any) -> dict[str, Any]:
    answer = client.post(SESSIONS, json={"session_id": session_id, "messages": HISTORY} | fields)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def context(client: TestClient, session_id: str = "s") -> dict[str, Any]:
    answer = client.get(f"{SESSIONS}/{quote(session_id, safe='')}/context")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def tool(client: TestClient, name: str, session_id: str = "s", **body: Any) -> dict[str, Any]:
    answer = client.post(f"{SESSIONS}/{session_id}/tools/{name}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def edit(client: TestClient, *edits: dict[str, Any], session_id: str = "s", **body: Any) -> dict[str, Any]:
    answer = client.post(f"{SESSIONS}/{session_id}/edits", json={"edits": edits} | body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cut(client: TestClient, num_fragments: int = 4, name: str = "alpha") -> list[str]:
    arguments = {
        "start_marker": f"{name} 0 ",
        "end_marker": f"{name} 39 says something of no great interest.\n",
        "num_fragments": num_fragments,
    }
    ids: list[str] = tool(client, "fragment_context", arguments=arguments)["fragment_ids"]
    assert len(ids) == num_fragments
    return ids


@pytest.mark.parametrize("suite", SUITES)
def test_the_tools_of_a_suite_are_ready_for_a_chat_request(client: TestClient, suite: str) -> None:
    body = client.get("/v1/acm/tools", params={"suite": suite}).json()
    assert body["suite"] == suite
    assert body["tools"] == list(suite_tools(suite))
    assert {"unified", "pi-llm", "needlebench"} <= body["presets"].keys()


def test_the_default_suite_has_the_six_tools(client: TestClient) -> None:
    body = client.get("/v1/acm/tools").json()
    assert (body["suite"], len(body["tools"])) == ("sculptor", 6)


def test_a_session_is_made_shown_and_deleted(client: TestClient) -> None:
    answer = client.post(SESSIONS, json={"session_id": "agent-7", "messages": HISTORY, "suite": "sculptor-v1"})
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{SESSIONS}/agent-7"
    assert answer.json().items() >= {"session_id": "agent-7", "suite": "sculptor-v1", "num_messages": 4}.items()
    assert client.get(f"{SESSIONS}/agent-7").json()["created_at"] == answer.json()["created_at"]
    deleted = client.delete(f"{SESSIONS}/agent-7")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert client.get(f"{SESSIONS}/agent-7").status_code == 404
    assert client.delete(f"{SESSIONS}/agent-7").status_code == 404


@pytest.mark.parametrize("request_body", [{}, {"json": {}}, {"json": {"session_id": None, "messages": None}}])
def test_a_session_needs_nothing(client: TestClient, request_body: dict[str, Any]) -> None:
    answer = client.post(SESSIONS, **request_body)
    assert answer.status_code == 201
    assert context(client, answer.json()["session_id"])["messages"] == []


def test_an_id_is_taken_once_and_stays_as_it_was(client: TestClient) -> None:
    made(client)
    answer = client.post(SESSIONS, json={"session_id": "s", "messages": [], "suite": "sculptor-v1"})
    assert answer.status_code == 409
    assert client.get(f"{SESSIONS}/s").json().items() >= {"suite": "sculptor", "num_messages": 4}.items()


def test_a_session_that_does_not_fit_leaves_nothing_behind() -> None:
    client = make_client(make_server(max_bytes=2_000))
    answer = client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY})
    assert answer.status_code == 409
    assert "2,000" in answer.json()["error"]["message"]
    assert client.get(SESSIONS).json()["data"] == []


async def use_and_delete(server: ContextServer, path: str) -> list[httpx.Response]:
    """Not through Starlette's test client, which decodes paths twice."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(server)), base_url="http://server") as client:
        search = client.post(f"{path}/tools/search_context", json={"arguments": {"query": "alpha 3 "}})
        return [await client.get(f"{path}/context"), await search, await client.get(path), await client.delete(path)]


@pytest.mark.parametrize("session_id", ODD_IDS)
def test_any_text_is_an_id(client: TestClient, server: ContextServer, session_id: str) -> None:
    """Percent-encoded in a path, so `a/context` is never taken for the context of `a`."""
    made(client, "a")
    assert made(client, session_id)["session_id"] == session_id
    path = f"{SESSIONS}/{quote(session_id, safe='').replace('.', '%2E')}"
    seen, searched, shown, deleted = asyncio.run(use_and_delete(server, path))
    assert seen.json()["session_id"] == shown.json()["session_id"] == session_id
    assert "3 says" in searched.json()["result"]
    assert deleted.status_code == 204
    assert [session["session_id"] for session in client.get(SESSIONS).json()["data"]] == ["a"]


def test_a_location_leads_to_its_session(client: TestClient) -> None:
    answer = client.post(SESSIONS, json={"session_id": "a/b %"})
    assert client.get(answer.headers["location"]).json()["session_id"] == "a/b %"


def test_sessions_are_listed_page_by_page(client: TestClient) -> None:
    for i in range(5):
        made(client, f"s/{i}", messages=[])
    assert [s["session_id"] for s in client.get(SESSIONS).json()["data"]] == ["s/4", "s/3", "s/2", "s/1", "s/0"]
    found, after = [], {}
    while True:
        page = client.get(SESSIONS, params={"limit": 2} | after).json()
        found += [session["session_id"] for session in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["session_id"], page["data"][-1]["session_id"])
        client.get(f"{SESSIONS}/{quote(found[-1], safe='')}")
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert found == ["s/4", "s/3", "s/2", "s/1", "s/0"]


def test_without_an_edit_the_model_sees_what_the_client_sent(client: TestClient) -> None:
    message = {
        "tool_calls": [{"id": "c", "type": "function", "function": {"arguments": '{"a": 1}', "name": "f"}, "x": 1.5}],
        "content": [{"type": "text", "text": "one two"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        "reasoning": "hm",
        "role": "assistant",
    }
    made(client, messages=[*HISTORY, message])
    body = context(client)
    assert [m["message"] for m in body["messages"]] == [*HISTORY, message]
    assert list(body["messages"][-1]["message"]) == list(message)
    assert (
        body["messages"][-1].items() >= {"index": 4, "role": "assistant", "origin": "client", "num_tokens": 2}.items()
    )
    assert body["num_tokens"] == body["num_tokens_original"] == sum(m["num_tokens"] for m in body["messages"])
    assert body["fragments"] == []


def test_the_context_says_who_wrote_what_and_where_its_kv_is(client: TestClient, server: ContextServer) -> None:
    made(client)
    session = server.store.get("", "s")
    state = append_internal(session.state, [{"role": "tool", "content": "found"}])
    server.store.save(session, append_answer(state, {"role": "assistant", "content": "42"}))
    messages = context(client)["messages"]
    assert [m["origin"] for m in messages] == ["client"] * 4 + ["internal", "answer"]
    assert {m["kv"] for m in messages} == {"gone"}


def test_a_fold_by_a_tool_call_is_seen_and_undone(client: TestClient) -> None:
    made(client)
    ids = cut(client)
    folded = tool(client, "fold_fragment", arguments={"fragment_id": ids[1]})
    assert folded.items() >= {"is_error": False, "changed": True, "fragment_ids": [ids[1]]}.items()
    body = context(client)
    fragment = body["fragments"][1]
    assert fragment["state"] == "folded"
    assert fragment["messages"][0]["index"] == 1
    assert fragment["preview"] == lines(40, "alpha")[fragment["messages"][0]["start"] :][:80]
    assert f"[folded {ids[1]}: " in body["messages"][1]["message"]["content"]
    saved = fragment["num_tokens"] - fragment["num_tokens_shown"]
    assert abs(body["num_tokens_original"] - body["num_tokens"] - saved) <= 1, "a token may span the end of the marker"
    assert tool(client, "restore_fragment", arguments=json.dumps({"fragment_id": ids[1]}))["changed"] is True
    assert [m["message"] for m in context(client)["messages"]] == HISTORY


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("fold_fragment", {"fragment_id": "f00000"}, "no fragment"),
        ("fold_fragment", "{not json", "not valid JSON"),
        ("fold_fragment", "[" * 100_000, "nested"),
        ("fold_fragment", None, "fragment_id"),
        ("fold_fragment", {"fragment": "f00000"}, "no such argument"),
        ("search_context", {"query": "x", "max_results": 51}, "from 1 to 50"),
        ("search_context", '{"query": "\\ud800"}', "query"),
        ("fragment_context", {"start_marker": "gamma", "end_marker": "beta"}, "no message"),
        ("summarize_fragment", {"fragment_id": "f00000", "focus": " "}, "focus"),
    ],
)
def test_a_wrong_call_is_a_result_for_the_model(client: TestClient, name: str, arguments: Any, says: str) -> None:
    made(client)
    before = context(client)
    answer = tool(client, name, arguments=arguments)
    assert answer.items() >= {"name": name, "is_error": True, "changed": False, "fragment_ids": []}.items()
    assert answer["result"].startswith("Error: ")
    assert says in answer["result"]
    assert context(client) == before


def test_a_call_without_arguments_needs_no_body(client: TestClient) -> None:
    made(client, suite="sculptor-v1")
    ids = cut(client)
    edit(client, {"op": "fold", "fragment_id": ids[0]})
    answer = client.post(f"{SESSIONS}/s/tools/restore_context")
    assert answer.json()["changed"] is True
    assert context(client)["fragments"] == []


def test_the_suite_of_a_call_is_the_sessions_unless_it_says_another(client: TestClient) -> None:
    made(client)
    assert client.post(f"{SESSIONS}/s/tools/restore_context").status_code == 404
    assert tool(client, "restore_context", suite="sculptor-v1")["is_error"] is False


def test_a_summary_is_written_once_for_a_focus(client: TestClient, server: ContextServer) -> None:
    made(client)
    summarizer = server._summarizer
    assert isinstance(summarizer, FirstSentence)
    fragment_id = cut(client, 1)[0]
    wanted = {"op": "summarize", "fragment_id": fragment_id, "focus": "names"}
    done = edit(client, wanted)
    assert done["edits"][0]["state"] == "summarized"
    fragment = context(client)["fragments"][0]
    assert fragment["focus"] == "names"
    assert "alpha 0 says something of no great interest." in context(client)["messages"][1]["message"]["content"]
    edit(client, {"op": "restore", "fragment_id": fragment_id})
    assert edit(client, wanted)["edits"] == done["edits"]
    tool(client, "restore_fragment", arguments={"fragment_id": fragment_id})
    again = tool(client, "summarize_fragment", arguments={"fragment_id": fragment_id, "focus": "names"})
    assert (again["changed"], summarizer.num_summaries) == (True, 1)


def test_a_search_by_meaning_changes_nothing(client: TestClient) -> None:
    made(client, suite="sculptor-v1", messages=[*HISTORY, {"role": "user", "content": "red apples"}])
    arguments = {"query": "apples red", "mode": "semantic", "similarity_threshold": 0.9}
    answer = tool(client, "search_context", arguments=arguments)
    assert (answer["is_error"], answer["changed"]) == (False, False)
    assert "red apples" in answer["result"]


def test_several_edits_are_one_plan(client: TestClient) -> None:
    made(client)
    ids = cut(client)
    before = context(client)["num_tokens"]
    done = edit(client, {"op": "fold", "fragment_id": ids[0]}, {"op": "fold", "messages": {"start": 3, "end": 4}})
    assert [e["state"] for e in done["edits"]] == ["folded", "folded"]
    assert done["tokens_before"] == before
    assert done["tokens_after"] == context(client)["num_tokens"]
    assert done["tokens_before"] - done["tokens_after"] == sum(
        e["tokens_before"] - e["tokens_after"] for e in done["edits"]
    )
    visible_before_the_first_edit = 2
    assert done["next_turn"] == {
        "recomputed_tokens": done["tokens_after"] - visible_before_the_first_edit,
        "moved_tokens": 0,
    }


def test_with_reuse_the_text_between_edits_moves(client: TestClient) -> None:
    made(client)
    first, _, third, _ = cut(client)
    done = edit(client, *({"op": "fold", "fragment_id": i} for i in (third, first)), fidelity="reuse")
    markers = sum(e["tokens_after"] for e in done["edits"])
    assert done["next_turn"]["recomputed_tokens"] == markers
    assert done["next_turn"]["moved_tokens"] == pytest.approx(done["tokens_after"] - markers - 2, abs=2)


def test_edits_that_take_each_other_back_cost_nothing(client: TestClient) -> None:
    made(client)
    fragment_id = cut(client, 1)[0]
    done = edit(client, *({"op": op, "fragment_id": fragment_id} for op in ("fold", "restore")))
    assert done["next_turn"] == {"recomputed_tokens": 0, "moved_tokens": 0}


def test_a_redacted_text_is_gone_and_what_follows_is_computed(client: TestClient) -> None:
    made(client)
    done = edit(client, {"op": "redact", "messages": {"start": 1, "end": 2}}, fidelity="reuse")
    assert done["next_turn"] == {"recomputed_tokens": done["tokens_after"] - 2, "moved_tokens": 0}
    body = context(client)
    assert body["fragments"][0].items() >= {"state": "redacted", "preview": None}.items()
    assert "alpha" not in json.dumps(body)
    assert tool(client, "search_context", arguments={"query": "alpha"})["result"].startswith("No match")
    fragment_id = body["fragments"][0]["fragment_id"]
    answer = client.post(f"{SESSIONS}/s/edits", json={"edits": [{"op": "restore", "fragment_id": fragment_id}]})
    assert answer.status_code == 409


def test_edits_are_all_or_nothing(client: TestClient) -> None:
    made(client)
    ids = cut(client)
    before = context(client)
    edits = [{"op": "fold", "fragment_id": ids[0]}, {"op": "fold", "fragment_id": ids[0]}]
    answer = client.post(f"{SESSIONS}/s/edits", json={"edits": edits})
    assert (answer.status_code, answer.json()["error"]["param"]) == (409, "edits[1].fragment_id")
    assert context(client) == before


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"authorization": "Bearer one"}, {"authorization": "Bearer two"}),
        ({"authorization": "Bearer one"}, {"authorization": "Bearer one", "x-cache-salt": "b"}),
        ({"x-cache-salt": "a"}, {"x-cache-salt": "b"}),
        ({"x-cache-salt": "a"}, {}),
    ],
)
def test_a_session_is_private_to_key_and_salt(mine: dict[str, str], theirs: dict[str, str]) -> None:
    server = make_server(has_api_keys=True)
    me, other = make_client(server, **mine), make_client(server, **theirs)
    made(me)
    edits = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    for answer in (
        other.get(f"{SESSIONS}/s"),
        other.get(f"{SESSIONS}/s/context"),
        other.post(f"{SESSIONS}/s/tools/search_context", json={"arguments": {"query": "alpha"}}),
        other.post(f"{SESSIONS}/s/edits", json=edits),
        other.delete(f"{SESSIONS}/s"),
    ):
        never_made = other.get(f"{SESSIONS}/t")
        assert answer.status_code == never_made.status_code == 404
        assert answer.text == never_made.text.replace("'t'", "'s'")
    assert other.get(SESSIONS).json()["data"] == []
    assert made(other, messages=[])["num_messages"] == 0
    assert len(context(me)["messages"]) == 4


def test_without_api_keys_a_placeholder_is_no_tenant() -> None:
    server = make_server(has_api_keys=False)
    made(make_client(server, authorization="Bearer none"))
    assert len(context(make_client(server, authorization="Bearer EMPTY"))["messages"]) == 4


async def calls_at_once(server: ContextServer) -> list[httpx.Response]:
    transport = httpx.ASGITransport(make_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        queries = [
            client.post(f"{SESSIONS}/s/tools/search_context", json={"arguments": {"query": f"alpha {i} "}})
            for i in range(10)
        ]
        folds = [
            client.post(
                f"{SESSIONS}/s/edits", json={"edits": [{"op": "summarize", "messages": {"start": i, "end": i + 1}}]}
            )
            for i in (1, 3)
        ]
        return list(await asyncio.gather(*queries, *folds))


def test_calls_at_once_lose_nothing(client: TestClient, server: ContextServer) -> None:
    made(client)
    answers = asyncio.run(calls_at_once(server))
    assert {answer.status_code for answer in answers} == {200}
    state = server.store.get("", "s").state
    assert (len(state.hits), len(state.fragments)) == (10, 2)
    server.store.check_integrity()


async def delete_while_held(server: ContextServer) -> list[int]:
    transport = httpx.ASGITransport(make_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        async with server.sessions.locked(server.store.get("", "s")):
            deleting = asyncio.create_task(client.delete(f"{SESSIONS}/s"))
            await until_they_wait(server, 1)
            editing = asyncio.create_task(client.post(f"{SESSIONS}/s/tools/search_context", json={}))
            await until_they_wait(server, 2)
            assert not deleting.done()
        return [(await deleting).status_code, (await editing).status_code]


def test_a_delete_waits_its_turn_and_what_waited_behind_it_finds_nothing(
    client: TestClient, server: ContextServer
) -> None:
    made(client)
    assert asyncio.run(delete_while_held(server)) == [204, 404]


def test_what_a_chat_request_let_in_is_still_shown_as_json(client: TestClient, server: ContextServer) -> None:
    """The parser of vLLM takes NaN and halves of surrogate pairs. The routes show them as JSON can say them."""
    session = server.store.open("", "s")
    message = {"role": "user", "content": "crab", "score": float("nan"), "\udc00": ["half \ud83d of it", 1.5]}
    server.store.save(session, adopt(session.state, [message]).state)
    shown = {"role": "user", "content": "crab", "score": None, "\ufffd": ["half \ufffd of it", 1.5]}
    assert context(client)["messages"][0]["message"] == shown


def test_a_session_of_a_suite_that_is_no_longer_loaded_is_shown(server: ContextServer, client: TestClient) -> None:
    """The server was started again without `--suite FILE`. One such session may not hide all others."""
    made(client, "old")
    server.store.get("", "old").suite = "mine"
    assert client.get(f"{SESSIONS}/old").json()["suite"] == "mine"
    assert [item["suite"] for item in client.get(SESSIONS).json()["data"]] == ["mine"]
    assert client.get(f"{SESSIONS}/old/context").status_code == 200
    edits = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    refused = client.post(f"{SESSIONS}/old/edits", json=edits)
    assert refused.status_code == 404
    assert "--suite FILE" in refused.text
