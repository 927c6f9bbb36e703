"""What one client can make a server hold that only hands over: no more than the server that owns the session would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from acmserve.server.http import strict_json
from acmserve.server.siblings.arrived_body import read_body
from acmserve.server.siblings.ownership import Ownership
from tests.support.siblings.api_servers import sibling_apps

CHAT, SESSIONS = "/v1/chat/completions", "/v1/acm/sessions"
MIB = 2**20
NUM_SERVERS = 2
NUM_CHUNKS = 64
NUM_EVENTS, EVENT_CHARS = 20_000, 1000


def test_a_body_is_read_no_further_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of it is given again, and what has not arrived stays where it is."""
    monkeypatch.setattr(strict_json, "MAX_BODY_BYTES", 2 * MIB)
    num_read = 0

    async def receive() -> Message:
        nonlocal num_read
        num_read += 1
        return {"type": "http.request", "body": b"x" * MIB, "more_body": num_read < NUM_CHUNKS}

    async def replayed() -> int:
        arrived = await read_body({"type": "http", "headers": []}, receive)
        assert arrived.whole is None
        assert "has 3,145,728 bytes or more" in str(arrived.refusal)
        assert num_read == 3
        again, num_messages = arrived.again(receive), 0
        while (await again()).get("more_body"):
            num_messages += 1
        return num_messages + 1

    assert asyncio.run(replayed()) == NUM_CHUNKS


@pytest.mark.parametrize("path", [CHAT, SESSIONS, f"{SESSIONS}/agent-7/edits"])
def test_a_body_that_is_too_long_is_refused_where_it_arrives(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in front or not. A server that answered without knowing the session would open it twice."""
    monkeypatch.setattr(strict_json, "MAX_BODY_BYTES", 1000)
    body = {"model": "m", "session_id": "agent-7", "messages": [{"role": "user", "content": "x" * 1000}]}

    async def chunks() -> AsyncIterator[bytes]:
        yield json.dumps(body).encode()

    async def asked() -> list[int]:
        async with sibling_apps(NUM_SERVERS) as servers:
            owner = servers[Ownership(NUM_SERVERS).owner_of("", "agent-7")]
            (other,) = (each for each in servers if each is not owner)
            headers = {"Content-Type": "application/json"}
            answers = [
                await other.client.post(path, json=body),
                await other.client.post(path, content=chunks(), headers=headers),
            ]
            assert [len(each.sessions) for each in servers] == [0, 0]
            return [answer.status_code for answer in answers]

    assert asyncio.run(asked()) == [413, 413]


@pytest.mark.parametrize("num_servers", [1, NUM_SERVERS])
def test_a_slow_reader_of_all_events_is_dropped(num_servers: int) -> None:
    """Nothing that waits for it piles up in the server that it listens to."""

    async def heard() -> str:
        async with sibling_apps(num_servers) as servers:
            owner = servers[Ownership(num_servers).owner_of("", "agent-7")]
            events = owner.app.state.acm_server.events
            async with servers[0].client.stream("GET", "/v1/acm/events") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "event: opened"
                for number in range(NUM_EVENTS):
                    # Of changes of one session in a row only the last one is told.
                    events.publish(("", f"agent-{number % 2}"), "changed", text="x" * EVENT_CHARS)
                    await asyncio.sleep(0)
                events.publish(("", "agent-0"), "deleted")
                async for line in lines:
                    if line.startswith("data: ") and json.loads(line[6:])["type"] in ("dropped", "deleted"):
                        return str(json.loads(line[6:])["type"])
            return "nothing"

    assert asyncio.run(heard()) == "dropped"
