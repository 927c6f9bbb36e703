"""Several API servers with real sockets between them answer as one."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.routing import APIRoute

from acmserve.errors import IntegrityError
from acmserve.server.routes.router import router
from acmserve.server.siblings.gathering import LIST_LIMIT, USAGE_LIMIT
from acmserve.server.siblings.ownership import Ownership
from acmserve.server.siblings.run_folder import make_run_folder, socket_path
from acmserve.server.siblings.sibling_client import target_of
from acmserve.server.siblings.siblings import Siblings
from tests.support import http
from tests.support.routes.vendor_app import tell_errors
from tests.support.siblings.api_servers import ApiServer, sibling_apps

CHAT, SESSIONS = "/v1/chat/completions", "/v1/acm/sessions"
NAMES = [f"agent-{number}" for number in range(8)]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def turns(servers: list[ApiServer], name: str, num_turns: int) -> list[Any]:
    """Turns of a session that arrive at each server in turn, with the views behind each."""
    messages, seen = [user(f"{name} begins. {'The harbour log. ' * 60}")], []
    for number in range(num_turns):
        client = servers[number % len(servers)].client
        body = {"model": "m", "session_id": name, "messages": messages}
        answer = await client.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
        messages = [*messages, answer.json()["choices"][0]["message"], user(f"Go on {number}.")]
        if number == 1:
            fold = {"op": "fold", "messages": {"start": 0, "end": 1}}
            edited = await servers[0].client.post(f"{SESSIONS}/{name}/edits", json={"edits": [fold]})
            seen.append((edited.status_code, edited.json().get("error")))
        context = await servers[-1].client.get(f"{SESSIONS}/{name}/context")
        shown = context.json()
        seen.append((context.status_code, [each["message"] for each in shown.get("messages", ())]))
    return seen


async def _turns_of(num_servers: int, *, hands_over: bool = True) -> dict[str, list[Any]]:
    async with sibling_apps(num_servers, hands_over=hands_over) as servers:
        found = {name: await turns(servers, name, 4) for name in NAMES}
        if hands_over and num_servers > 1:
            assert all(len(each.sessions) > 0 for each in servers), "the control: sessions have several owners"
            assert sum(len(each.sessions) for each in servers) == len(NAMES)
            assert all(seen[1] == (200, None) for seen in found.values()), "the control: folds took effect"
        return found


@pytest.mark.parametrize("num_servers", [2, 3])
def test_turns_that_arrive_anywhere_are_those_of_one_server(num_servers: int) -> None:
    one = asyncio.run(_turns_of(1))
    assert asyncio.run(_turns_of(num_servers)) == one
    assert asyncio.run(_turns_of(num_servers, hands_over=False)) != one, "the control: nothing is handed over"


def test_lists_are_those_of_one_server() -> None:
    async def listed(num_servers: int) -> list[Any]:
        async with sibling_apps(num_servers) as servers:
            for number, name in enumerate(NAMES):
                client = servers[number % num_servers].client
                made = await client.post(SESSIONS, json={"session_id": name, "messages": [user(name)]})
                assert made.status_code == 201
            clients = [each.client for each in servers]
            pages, after = [], ""
            while True:
                page = (await clients[len(pages) % num_servers].get(f"{SESSIONS}?limit=3{after}")).json()
                pages.append([each["session_id"] for each in page["data"]])
                if not page["has_more"]:
                    break
                after = f"&after={page['last_id']}"
            usage = (await clients[-1].get("/v1/acm/usage?limit=5")).json()
            used = [each["session_id"] for each in usage["data"]]
            refused = [
                (await clients[-1].get(f"{SESSIONS}?{query}")).json() for query in ("after=nobody", "limit=0", "after=")
            ]
            health = (await clients[0].get("/health")).status_code
            return [pages, used, usage["has_more"], usage["num_sessions"], refused, health]

    limits = {
        route.path: next(param.field_info.default for param in route.dependant.query_params if param.name == "limit")
        for route in router().routes
        if isinstance(route, APIRoute) and route.path in (SESSIONS, "/v1/acm/usage") and "GET" in route.methods
    }
    assert limits == {SESSIONS: LIST_LIMIT, "/v1/acm/usage": USAGE_LIMIT}
    one = asyncio.run(listed(1))
    assert len(one[0]) == 3
    assert asyncio.run(listed(3)) == one


def test_a_drawn_id_is_the_servers_own() -> None:
    async def drawn() -> None:
        async with sibling_apps(3) as servers:
            for each in servers:
                made = (await each.client.post(SESSIONS, json={})).json()["session_id"]
                assert each.sessions.has("", made)
            await servers[0].client.post(SESSIONS, json={"session_id": "p", "messages": [user("Once upon a time.")]})
            asked = {"description": "look", "prompt": "Look around."}
            branch = (await servers[1].client.post(f"{SESSIONS}/p/branches", json=asked)).json()["branch_id"]
            owner = next(each for each in servers if each.sessions.has("", "p"))
            assert owner.sessions.has("", branch)
            for each in servers:
                assert (await each.client.get(f"{SESSIONS}/{branch}")).status_code == 200

    asyncio.run(drawn())


@pytest.mark.parametrize("name", ["a/b", "agent 7?#&", "caf\u00e9~x", "%2F"])
def test_every_id_finds_its_owner_by_path(name: str) -> None:
    async def asked() -> list[str]:
        async with sibling_apps(3) as servers:
            made = await servers[0].client.post(SESSIONS, json={"session_id": name})
            assert made.status_code == 201
            found = [await each.client.get(f"{SESSIONS}/{quote(name, safe='')}") for each in servers]
            return [each.json()["session_id"] for each in found]

    assert asyncio.run(asked()) == [name] * 3


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": [user("Hi.")]}),
        ("/v1/messages", {"messages": [user("Hi.")], "max_tokens": 5}),
        ("/v1/completions", {"prompt": "Hi."}),
        ("/v1/responses", {"input": "Hi.", "previous_response_id": "r"}),
    ],
)
def test_a_salt_that_is_no_text_is_refused_as_by_one_server(path: str, asked: dict[str, Any]) -> None:
    """Half of a surrogate pair, which JSON can write. Several servers answered it with 500."""
    sent = json.dumps({"model": "m", "session_id": "s", "cache_salt": "\ud800", **asked})

    async def answers(num_servers: int) -> list[tuple[int, Any]]:
        async with sibling_apps(num_servers, hands_over=num_servers > 1) as servers:
            found = []
            for each in servers:
                tell_errors(each.app)
                answer = await each.client.post(path, content=sent, headers={"content-type": "application/json"})
                found.append((answer.status_code, answer.json()))
            return found

    (one,) = asyncio.run(answers(1))
    assert one[0] == 400
    assert "cache_salt" in json.dumps(one[1])
    assert asyncio.run(answers(2)) == [one, one]


def test_bytes_that_http_does_not_allow_are_encoded() -> None:
    scope = {"raw_path": "/v1/acm/sessions/caf\u00e9".encode(), "query_string": b"a=%20&b= "}
    assert target_of(scope) == b"/v1/acm/sessions/caf%C3%A9?a=%20&b=%20"


def test_an_id_of_another_server_is_refused() -> None:
    """A branch of an export keeps its id. Where its owner would be another server, nothing is imported."""

    async def imported() -> list[int]:
        async with sibling_apps(1) as (one,):
            await one.client.post(SESSIONS, json={"session_id": "p", "messages": [user("Once upon a time.")]})
            owners: set[int] = set()
            while len(owners) < 2:  # ids are drawn at random
                await one.client.post(f"{SESSIONS}/p/branches", json={"description": "look", "prompt": "Look."})
                export = (await one.client.get(f"{SESSIONS}/p/export")).json()
                owners = {Ownership(3).owner_of("", kept["session_id"]) for kept in export["sessions"]}
        async with sibling_apps(3) as servers:
            answer = await servers[0].client.post(f"{SESSIONS}/p/import", json=export)
            assert "another API server" in answer.text
            return [answer.status_code, *(len(each.sessions) for each in servers)]

    assert asyncio.run(imported()) == [409, 0, 0, 0]


def test_two_requests_of_one_session_take_turns() -> None:
    async def raced(*, hands_over: bool) -> int:
        async with sibling_apps(2, hands_over=hands_over) as servers:
            bodies = [{"model": "m", "session_id": "s", "messages": [user(f"Question {i}.")]} for i in range(6)]
            await asyncio.gather(*(servers[i % 2].client.post(CHAT, json=body) for i, body in enumerate(bodies)))
            return sum(len(each.sessions) for each in servers)

    assert asyncio.run(raced(hands_over=True)) == 1
    assert asyncio.run(raced(hands_over=False)) == 2, "the control"


def test_all_events_are_one_stream() -> None:
    async def heard() -> list[str]:
        async with sibling_apps(3) as servers:
            kinds: list[str] = []
            async with servers[0].client.stream("GET", "/v1/acm/events") as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                async for line in stream.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    kinds.append(f"{event['type']} {event['session_id']}")
                    if len(kinds) == 1:
                        for number, name in enumerate(NAMES):
                            await servers[number % 3].client.post(SESSIONS, json={"session_id": name})
                    if len(kinds) > len(NAMES):
                        return kinds
            return kinds

    first, *others = asyncio.run(heard())
    assert first == "opened "
    assert sorted(others) == sorted(f"changed {name}" for name in NAMES)


def test_a_client_that_leaves_is_told_to_the_owner() -> None:
    async def left() -> int:
        async with sibling_apps(2) as servers:
            await servers[0].client.post(SESSIONS, json={"session_id": "s"})
            owner = next(each for each in servers if each.sessions.has("", "s"))
            (other,) = [each for each in servers if each is not owner]
            events = owner.app.state.acm_server.events
            async with other.client.stream("GET", f"{SESSIONS}/s/events") as stream:
                await anext(stream.aiter_lines())
                assert len(events) == 1
            while len(events):
                await asyncio.sleep(0.01)
            return len(events)

    assert asyncio.run(left()) == 0


def test_only_siblings_use_the_socket() -> None:
    async def asked() -> tuple[int, int, int]:
        async with sibling_apps(2) as servers:
            await servers[0].client.post(SESSIONS, json={"session_id": "s"})
            index = next(i for i, each in enumerate(servers) if each.sessions.has("", "s"))
            path = socket_path(servers[0].siblings._folder, index)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            socket = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=socket, base_url="http://t", timeout=http.SECONDS) as out:
                forged = {"x-acmserve-sibling": "0" * 64, "x-acmserve-scope": "{}"}
                bare = (await out.get(f"{SESSIONS}/s")).status_code
                wrong = (await out.get(f"{SESSIONS}/s", headers=forged)).status_code
            through = (await servers[1 - index].client.get(f"{SESSIONS}/s", headers=forged)).status_code
            return bare, wrong, through

    assert asyncio.run(asked()) == (403, 403, 200), "a client's own headers of that name count nowhere"


def test_a_sibling_that_is_gone_is_no_lost_session() -> None:
    async def asked() -> tuple[int, str]:
        async with sibling_apps(2) as servers:
            await servers[0].client.post(SESSIONS, json={"session_id": "s"})
            owner = next(each for each in servers if each.sessions.has("", "s"))
            (other,) = [each for each in servers if each is not owner]
            await owner.siblings.stop(owner.app)
            answer = await other.client.get(f"{SESSIONS}/s")
            listed = await other.client.get(SESSIONS)
            assert listed.status_code == 503, "a list without its part would be a shorter list"
            return answer.status_code, answer.json()["error"]["remedy"]

    status, remedy = asyncio.run(asked())
    assert status == 503
    assert "Send the request again" in remedy


def test_context_maps_are_refused_by_name() -> None:
    async def asked(*, by_tenant: bool) -> list[int]:
        async with sibling_apps(2, by_tenant=by_tenant) as servers:
            found = []
            for each in servers:
                found.append((await each.client.put("/v1/acm/maps/m", json={})).status_code)
                found.append((await each.client.get("/v1/acm/maps/m")).status_code)
                body = {"model": "m", "session_id": "s", "messages": [user("?")]}
                mapped = {**body, "acm": {"map": {"external_context_id": "m"}}}
                answer = await each.client.post(CHAT, json=mapped)
                assert by_tenant or "--infer-sessions" in answer.json()["error"]["remedy"]
                found.append(answer.status_code)
            return found

    assert asyncio.run(asked(by_tenant=False)) == [404, 404, 400] * 2
    assert asyncio.run(asked(by_tenant=True)) == [201, 200, 200, 200, 200, 200]


def test_previous_response_finds_its_session_anywhere() -> None:
    async def found() -> list[int]:
        async with sibling_apps(2) as servers:
            owner = servers[Ownership(2).owner_of("", "agent-7")]
            owner.app.state.acm_server.identifier.responses.note("", "resp_1", "agent-7")
            body = {"model": "m", "messages": [user("?")], "previous_response_id": "resp_1"}
            for each in servers:
                await each.client.post("/v1/messages/count_tokens", json={**body, "max_tokens": 1})
                await each.client.post("/v1/messages", json={**body, "max_tokens": 1})
            (other,) = [each for each in servers if each is not owner]
            return [len(other.handler.seen), len(other.sessions)]

    assert asyncio.run(found()) == [0, 0]


def test_integrity() -> None:
    folder = make_run_folder()
    siblings = Siblings(folder, 2)
    shutil.rmtree(folder)
    siblings.check_integrity()
    siblings.index = 2
    with pytest.raises(IntegrityError, match="server 2 of 2"):
        siblings.check_integrity()
