"""A request that is only looked for: `look` says what `identify` does next, and leaves nothing behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.context.session.state import SessionState
from acmserve.context.storage.sqlite import Archive
from acmserve.context.tools.batch import Edit, EditKind, run_batch
from acmserve.context.tools.tool import ToolContext
from acmserve.errors import AcmError, StorageFailed
from acmserve.server.context.server import ContextServer
from acmserve.server.options.compaction_content import write_content
from acmserve.server.sessions.identifier import Identified, Identifier
from tests.support.server.acm_app import lines, make_server
from tests.support.server.clients import AGENT_SYSTEM, SUMMARY_SYSTEM, TITLE_SYSTEM, ChatClient

CLAUDE = {"x-claude-code-session-id": "claude"}
TOPICS = ("ledger", "mill", "weir", "orchard", "chapel")
KINDS = ("user",) * 6 + ("call",) * 3 + ("title", "fork", "agent", "again", "fold", "redact", "named agent")


def inferring(**options: Any) -> ContextServer:
    server = make_server(**options)
    server.identifier = Identifier(infers=True, store=server.store, served=server.served)
    return server


def memory(server: ContextServer) -> Any:
    """All that is remembered of sessions and of conversations, in its order."""
    families = server.identifier.families
    sessions = [(key, held.state, held.turns, held.used_at) for key, held in server.store._sessions.items()]
    threads = [
        (tenant, family, name, thread.session_id, thread.engine_id, thread.conversation, thread.is_behind)
        for tenant, of_tenant in families._tenants.items()
        for family, known in of_tenant.families.items()
        for name, thread in known.items()
    ]
    return sessions, threads, list(families._sizes), dict(server.store._uses), dict(server.budgets._meters)


def kept(state: SessionState) -> Any:
    """A state but for the thread's name, and for the key of its digests, which are drawn when it is made."""
    return state.entries, state.fragments, state.omissions, state.budget, state.redacted


def looked(server: ContextServer, client: ChatClient) -> tuple[Identified, SessionState]:
    """What is said of a request. Nothing has changed by that."""
    before = memory(server)
    found = server.identifier.look(copy.deepcopy(client.body), client.headers, "", is_held=True)
    assert found is not None
    assert found.foresee is not None
    state = found.foresee()
    assert memory(server) == before
    return found, state


def turn(server: ContextServer, client: ChatClient, answer: str = "Noted.") -> Identified:
    """One request that is answered, as a route of chats does it. Before that it is looked for."""
    told, foreseen = looked(server, client)
    found = server.identifier.identify(copy.deepcopy(client.body), client.headers, "", is_held=True)
    assert found is not None
    session = server.store.open("", found.params.session_id)
    assert kept(session.state) == kept(foreseen)
    assert (told.found_by, told.is_explicit) == (found.found_by, found.is_explicit)
    if not told.begins:
        assert told.told == {"session_id": found.params.session_id, **found.fields}
        assert (told.family, told.engine_id) == (found.family, found.engine_id)
    elif found.found_by == "new" or found.params.session_id != found.family:
        assert told.told == {"found_by": found.found_by}
    with found.attempt() as attempt:
        message = {"role": "assistant", "content": answer}
        state = adopt(session.state, copy.deepcopy(client.body["messages"])).state
        found.answered(message)
        server.store.save(session, end_turn(append_answer(state, message)))
        attempt.is_answered = True
    return found


def edit_first(server: ContextServer, session_id: str, kind: EditKind) -> None:
    """Fold or redact the first message of the user. A second time there is nothing to do."""
    session = server.store.get("", session_id)
    with suppress(AcmError):
        context = ToolContext(server.tokenizer, "sculptor", "exact")
        changed = run_batch(session.state, [Edit(kind, messages=(1, 2))], context, {}).state
        before = session.state
        server.store.save(session, changed)
        if kind is EditKind.REDACT:
            server._redacted(session, before)


def act(server: ContextServer, client: ChatClient, rng: Random, number: int, session_id: str) -> Identified | None:
    topic, kind = rng.choice(TOPICS), rng.choice(KINDS)
    if kind in ("fold", "redact"):
        edit_first(server, session_id, EditKind.FOLD if kind == "fold" else EditKind.REDACT)
    if kind == "title":
        return turn(server, client.side(TITLE_SYSTEM, {"role": "user", "content": f"A title on {topic}."}), "Title")
    if kind == "fork":
        ask = {"role": "user", "content": "Condense the above."}
        return turn(server, client.side(SUMMARY_SYSTEM, *client.messages, ask), f"So far: {topic}.")
    if kind in ("agent", "named agent"):
        headers = client.headers | ({"x-claude-code-agent-id": topic} if kind == "named agent" else {})
        agent = ChatClient(AGENT_SYSTEM, ("read",), headers, client.extra).user(f"Search {topic} {rng.randrange(3)}.")
        return turn(server, agent, "Nothing found.")
    if kind == "again" and client.messages:
        client.messages.pop()
    elif kind == "call":
        client.call("grep", lines(3, f"{topic} {number}"), word=topic)
    else:
        client.user(lines(2, f"{topic} {number}"))
    answer = lines(2, f"answer {topic} {number}")
    found = turn(server, client, answer)
    client.answer(answer)
    return found


@pytest.mark.parametrize(
    ("make", "client"),
    [
        (make_server, ChatClient(extra={"session_id": "s"})),
        (make_server, ChatClient(headers=CLAUDE)),
        (inferring, ChatClient(headers=CLAUDE)),
        (inferring, ChatClient()),
    ],
    ids=["session_id", "header", "header beside content", "content"],
)
def test_what_is_told_is_what_is_done(make: Callable[[], ContextServer], client: ChatClient) -> None:
    """Titles, forks, sub-agents, edits and turns that are asked again, in 20 sessions. All kinds of threads are met."""
    num_begun = num_sides = 0
    for seed in range(20):
        rng, server, mine = Random(seed), make(), copy.deepcopy(client)
        first = turn(server, mine.user(lines(6, "alpha")), "Noted: alpha.")
        mine.answer("Noted: alpha.")
        for number in range(14):
            found = act(server, mine, rng, number, first.params.session_id)
            assert found is not None
            num_begun += found.placement is not None and found.placement.before is None
            num_sides += found.params.session_id != found.family
        server.identifier.families.check_integrity()
        server.store.check_integrity()
    assert num_begun > 40
    assert num_sides > 20


def test_a_request_that_is_made_leaves_a_trace() -> None:
    """The control: the memory of a server sees what `identify` does."""
    server = inferring()
    client = ChatClient().user(lines(6, "alpha"))
    turn(server, client)
    before = memory(server)
    server.identifier.identify(client.answer("Noted.").user("And?").body, {}, "", is_held=True)
    assert memory(server) != before


def test_nothing_is_looked_for_by_content_where_nobody_asked_for_it() -> None:
    assert make_server().identifier.look(ChatClient().user("Hello.").body, {}, "", is_held=True) is None


def test_nobody_else_is_found() -> None:
    server = inferring()
    client = ChatClient().user(lines(6, "alpha"))
    turn(server, client)
    client.answer("Noted.").user("And?")
    mine = server.identifier.look(client.body, {}, "", is_held=True)
    theirs = server.identifier.look(client.body, {}, "another", is_held=True)
    assert mine is not None
    assert theirs is not None
    assert (mine.found_by, theirs.found_by) == ("content", "new")
    assert theirs.told == {"found_by": "new"}


def test_a_session_that_left_memory_is_not_brought_back(tmp_path: Path) -> None:
    """It is read where it lies. A request that is made brings it back, which is the control."""
    server = inferring(archive=Archive(tmp_path), max_sessions=1)
    try:
        client = ChatClient(extra={"session_id": "s"}).user(lines(6, "alpha"))
        turn(server, client)
        edit_first(server, "s", EditKind.FOLD)
        server.store.create("", "other")
        client.answer("Noted.").user("And?")
        _, state = looked(server, client)
        assert state.fragments
        assert [key[1] for key in server.store._sessions] == ["other"]
        turn(server, client)
        assert [key[1] for key in server.store._sessions] == ["s"]
    finally:
        server.store.close()


def test_a_file_that_cannot_be_read_is_told_as_for_a_request_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    client = ChatClient(extra={"session_id": "s"}).user(lines(6, "alpha"))
    turn(server, client)

    def fail(*key: str) -> None:
        raise StorageFailed("no", "damaged", "is damaged", "Delete it.")

    monkeypatch.setattr(server.store, "peek", fail)
    with pytest.raises(StorageFailed):
        server.identifier.look(client.answer("Noted.").user("And?").body, {}, "", is_held=True)
    theirs = ChatClient(headers={"x-claude-code-session-id": "s"}, messages=client.messages)
    assert server.identifier.look(theirs.body, theirs.headers, "", is_held=True) is None


@pytest.mark.parametrize(
    ("tools", "later", "is_resumed"),
    [(None, None, True), (("grep",), None, False), (None, "It went on.", False)],
    ids=["as it is", "control: other tools", "control: it has gone on"],
)
def test_a_compaction_block_alone_goes_on_in_the_conversation(
    tools: tuple[str, ...] | None, later: str | None, is_resumed: bool
) -> None:
    """A pause ends the answer behind the block, and the client drops all else. The model says nothing in what it sends.

    A client with other tools is somebody else. A block of an older state of the conversation is no turn of it.
    """
    server = inferring()
    client = ChatClient().user(lines(6, "alpha"))
    first = turn(server, client)
    client.answer("Noted.").user(lines(6, "beta"))
    paused = server.identifier.identify(client.body, {}, "", is_held=True)
    assert paused is not None
    assert paused.family == first.family
    if later is not None:
        paused.answered({"role": "assistant", "content": later})
    block = {"type": "compaction", "content": "S.", "encrypted_content": write_content({"session": first.family})}
    client = ChatClient() if tools is None else ChatClient(tools=tools)
    client.messages = [{"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}]
    found = server.identifier.look(client.body, {}, "", is_held=True)
    assert found is not None
    assert (found.family, found.found_by) == (first.family, "summary")
    assert (found.params.session_id == first.family) == is_resumed
    assert (turn(server, client).params.session_id == first.family) == is_resumed
    theirs = server.identifier.look(client.body, {}, "another", is_held=True)
    assert theirs is not None
    assert theirs.found_by == "new"


def test_a_compaction_item_names_the_session_that_it_was_made_in() -> None:
    """Its client names none, and has dropped all but the item. One of another tenant finds nothing by it."""
    server = inferring()
    first = turn(server, ChatClient().user(lines(6, "alpha")))
    content = {"summary": "S.", "kept": [], "covers_all": True, "session": first.family}
    item = {"type": "compaction", "encrypted_content": write_content(content)}
    body = {"model": "m", "input": [item, {"role": "user", "content": "Go on."}]}
    found = server.identifier.look(body, {}, "", is_held=True)
    assert found is not None
    assert (found.family, found.found_by) == (first.family, "summary")
    theirs = server.identifier.look(body, {}, "another", is_held=True)
    assert theirs is not None
    assert theirs.found_by == "new"
    for odd in (None, 7, ["x"], "nobody"):
        item["encrypted_content"] = write_content(content | {"session": odd})
        odd_one = server.identifier.look(body, {}, "", is_held=True)
        assert odd_one is not None
        assert odd_one.found_by == "new"
