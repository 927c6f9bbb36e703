"""A request that goes on with its session's only thread, word for word, is placed without a look at its content.

Whatever comes, it is placed as if every request had been read: two servers get the same requests, and one reads all.
"""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.context.session.render import render
from acmserve.context.tools.batch import Edit, EditKind
from acmserve.errors import Conflict
from acmserve.server.context.server import ContextServer
from acmserve.server.identity.families import Families
from acmserve.server.identity.fingerprint import Fingerprint
from acmserve.server.identity.thread_hints import HEADERS
from acmserve.server.sessions.identifier import Identified
from acmserve.server.sessions.thread_sessions import stored_conversation
from tests.support.server.acm_app import lines, make_server
from tests.support.server.clients import AGENT_SYSTEM, SUMMARY_SYSTEM, TITLE_SYSTEM, ChatClient

EXTRA: dict[str, Any] = {"session_id": "s"}
TOPICS = ("ledger", "mill", "weir", "orchard", "chapel")


def turn(server: ContextServer, client: ChatClient, answer: str, headers: dict[str, str] | None = None) -> Identified:
    """One request that is answered, as a route of chats does it."""
    found = server.identifier.identify(copy.deepcopy(client.body), headers or {}, "", is_held=True)
    assert found is not None
    session = server.store.open("", found.params.session_id)
    with found.attempt() as attempt:
        message = {"role": "assistant", "content": answer}
        state = adopt(session.state, copy.deepcopy(client.body["messages"])).state
        found.answered(message)
        server.store.save(session, end_turn(append_answer(state, message)))
        attempt.is_answered = True
    server.identifier.families.check_integrity()
    return found


class Both:
    """A server as it is, and one that reads every request. `names` are the sessions of both, as they came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.quick, self.reader = make_server(), make_server()
        monkeypatch.setattr(self.reader.identifier.families, "goes_on_alone", lambda *args: False)
        self.names: tuple[list[str], list[str]] = ([], [])
        self.num_quick = 0

    def turn(self, client: ChatClient, answer: str) -> None:
        quick, read = (turn(server, client, answer) for server in (self.quick, self.reader))
        self.num_quick += quick.placement is None
        assert read.placement is not None
        places = []
        for found, server, names in zip((quick, read), (self.quick, self.reader), self.names, strict=True):
            name = found.params.session_id
            if name not in names:
                names.append(name)
            text = str(render(server.store.get("", name).state))
            in_engine = names.index(found.engine_id) if found.engine_id in names else found.engine_id
            places.append((names.index(name), name.partition("-")[0], in_engine, found.fields.keys(), text))
        assert places[0] == places[1]

    def redact_first(self) -> None:
        """A second time there is nothing to redact."""
        for server in (self.quick, self.reader):
            session = server.store.get("", "s")
            with suppress(Conflict):
                asyncio.run(server.editor.edit(session, [Edit(EditKind.REDACT, messages=(1, 2))], "exact"))

    def remembered(self) -> tuple[Fingerprint, Fingerprint]:
        return remembered(self.quick), remembered(self.reader)


def remembered(server: ContextServer) -> Fingerprint:
    """What is known of the main thread, once somebody has to know it."""
    families: Families = server.identifier.families
    of_tenant = families._tenants[""]
    families._catch_up(of_tenant, "", "s")
    return of_tenant.families["s"]["main"].conversation


def act(both: Both, client: ChatClient, rng: Random, number: int) -> None:
    topic = rng.choice(TOPICS)
    kind = rng.choice(("user",) * 8 + ("call",) * 5 + ("again", "title", "fork", "agent", "tools", "system", "redact"))
    if kind == "title":
        return both.turn(client.side(TITLE_SYSTEM, {"role": "user", "content": f"Write a title on {topic}."}), "Title")
    if kind == "fork":
        ask = {"role": "user", "content": "Condense the above."}
        return both.turn(client.side(SUMMARY_SYSTEM, *client.messages, ask), f"So far: {topic}.")
    if kind == "agent":
        agent = ChatClient(AGENT_SYSTEM, ("read",), extra=EXTRA).user(f"Search the {topic} for {rng.randrange(3)}.")
        return both.turn(agent, "Nothing found.")
    if kind == "redact":
        return both.redact_first()
    if kind == "again":
        client.messages.pop()
    elif kind == "tools":
        client.tools = client.tools[:-1] if len(client.tools) > 1 else ("read", "write", "paint")
    elif kind == "system":
        client.system += f"\nIt is {number} o'clock."
    if kind == "call":
        client.call("grep", lines(3, f"{topic} {number}"), word=topic)
    elif kind != "again":
        client.user(lines(2, f"{topic} {number}"))
    answer = lines(2, f"answer {topic} {number}")
    both.turn(client, answer)
    client.answer(answer)
    return None


def test_every_request_is_placed_as_if_all_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    num_quick = 0
    for seed in range(20):
        rng, both = Random(seed), Both(monkeypatch)
        client = ChatClient(extra=EXTRA).user(lines(6, "alpha"))
        both.turn(client, "Noted: alpha.")
        client.answer("Noted: alpha.")
        for number in range(14):
            act(both, client, rng, number)
        num_quick += both.num_quick
        quick, read = both.remembered()
        assert quick == read
    assert num_quick > 50


@pytest.mark.parametrize("num_lines", [1, 9])
def test_what_is_remembered_is_read_when_somebody_asks(num_lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as if every request had been read, also of a text that was redacted meanwhile."""
    both = Both(monkeypatch)
    client = ChatClient(extra=EXTRA)
    for number in range(5):
        client.user(lines(4, f"note {number}")).call("grep", lines(3, f"found {number}"), word=f"w{number}")
        both.turn(client, lines(num_lines, f"noted {number}"))
        client.answer(lines(num_lines, f"noted {number}"))
    assert both.num_quick == 4
    stale = both.quick.identifier.families._tenants[""].families["s"]["main"]
    assert stale.is_behind
    assert len(stale.conversation.digests) < 5, "the control: the first request alone was read"
    both.redact_first()
    quick, read = both.remembered()
    assert quick == read
    assert quick.ours
    assert bool(quick.said) == (num_lines > 1)
    assert not stale.is_behind


def test_a_transcript_that_is_read_after_a_restart_is_what_was_remembered() -> None:
    """All but the tools, which nobody knows then."""
    server, client = make_server(), ChatClient(extra=EXTRA)
    server.identifier.families.goes_on_alone = lambda *_: False  # type: ignore[method-assign]
    for number in range(3):
        turn(server, client.user(f"Note {number}."), lines(9, f"noted {number}"))
        client.answer(lines(9, f"noted {number}"))
    known = remembered(server)
    assert known.ours
    assert stored_conversation(server.store.get("", "s").state) == replace(known, tools=None)


@pytest.mark.parametrize("more", [{"system": "Another."}, {"conversation": "c"}, {"tools": []}])
def test_what_may_be_meant_for_another_thread_is_read(more: dict[str, Any]) -> None:
    server = make_server()
    client = ChatClient(extra=EXTRA).user("One.")
    assert turn(server, client, "1").placement is not None, "a first request is read"
    client.answer("1").user("Two.")
    body = client.body
    identify = server.identifier.identify
    for headers in ({}, {HEADERS[0]: "sub-1"}):
        found = identify(body, headers, "", is_held=True)
        assert found is not None
        assert (found.placement is None) == (not headers), "the control: this one goes on alone"
        found.withdraw()
    read: list[object] = []
    alone = server.identifier.families.goes_on_alone
    server.identifier.families.goes_on_alone = lambda *asked: read.append(alone(*asked)) or read[-1]  # type: ignore
    assert identify(body | more, {}, "", is_held=True) is not None
    assert True not in read
