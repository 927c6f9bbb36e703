"""Whose questions an API server answers: those of a sibling, and those of a client as one server alone would."""

from __future__ import annotations

import asyncio

import pytest

from acmserve.server.siblings.ownership import Ownership
from tests.support.siblings.api_servers import sibling_apps

SESSIONS = "/v1/acm/sessions"


@pytest.mark.parametrize("path", ["/siblings", "/"])
def test_what_siblings_ask_each_other_no_client_can_ask(path: str) -> None:
    """A path is the client's to choose, and a body names the session that has it handed over, and any tenant."""

    async def asked() -> list[tuple[int, str]]:
        async with sibling_apps(2) as servers:
            index = Ownership(2).owner_of("", "s")
            owner, other = servers[index], servers[1 - index]
            owner.app.state.acm_server.identifier.responses.note("victim", "resp_1", "secret-name")
            wanted = {"tenant": "victim", "responses": ["resp_1"]}
            own = await other.siblings._clients[index].ask(wanted)
            assert own == {"resp_1": "secret-name"}, "the control: siblings do ask"
            body = {
                "model": "m",
                "session_id": "s",
                "messages": [{"role": "user", "content": "?"}],
                "gauges": True,
                **wanted,
            }
            headers = ({}, {"x-acmserve-scope": ""}, {"connection": "x-acmserve-scope"})
            answers = [
                await each.client.post(path, json=body, headers=more) for each in (owner, other) for more in headers
            ]
            return [(answer.status_code, answer.text) for answer in answers]

    answers = asyncio.run(asked())
    assert all(status in (404, 405) and "secret-name" not in text for status, text in answers), answers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "e{l"}, 403),
        ({"Host": "[bad"}, 403),
        ({"X-Forwarded-For": "192.0.2.7"}, 403),
    ],
)
def test_who_may_list_is_judged_as_by_one_server(headers: dict[str, str], status: int) -> None:
    """By the connection and the headers that arrived, not by those between the servers."""

    async def listed(num_servers: int) -> list[int]:
        async with sibling_apps(num_servers) as servers:
            paths = (SESSIONS, "/v1/acm/usage")
            return [(await each.client.get(path, headers=headers)).status_code for each in servers for path in paths]

    assert asyncio.run(listed(1)) == [status] * 2
    assert asyncio.run(listed(2)) == [status] * 4
