"""From a request to a session in the store: named, found by content, or new, and the thread of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.render import render
from acmserve.context.session.state import Author, SessionState
from acmserve.context.storage.session import Session
from acmserve.context.tools.batch import Edit, EditKind, run_batch
from acmserve.context.tools.tool import ToolContext
from acmserve.errors import Conflict, IntegrityError, InvalidRequest, NotFound
from acmserve.server.context.branches import check_branch_of, give_back, make_branch
from acmserve.server.context.server import ContextServer
from acmserve.server.identity import families
from acmserve.server.identity.placement import MARK, derived_id
from acmserve.server.identity.responses import ResponseSessions
from acmserve.server.identity.threads import MAIN, Choice, ChoiceKind
from acmserve.server.options.session_from import parse_sources
from acmserve.server.sessions.family import branches_of, sides_of
from acmserve.server.sessions.identifier import Identified, Identifier
from acmserve.server.sessions.loops import undoable
from acmserve.server.sessions.sessions import engine_key, engine_name
from tests.support.server.acm_app import lines, make_server
from tests.support.server.clients import AGENT_SYSTEM, SUMMARY_SYSTEM, TITLE_SYSTEM, ChatClient

ONE_THREAD = Choice(ChoiceKind.JOIN, MAIN)
CLAUDE = {"x-claude-code-session-id": "claude"}


@pytest.fixture
def server() -> ContextServer:
    return make_server()


def identify(server: ContextServer, body: Any, headers: Mapping[str, str]) -> Identified | None:
    tenant = server.sessions.tenant_of(headers, body.get("cache_salt") if isinstance(body, Mapping) else None)
    return server.identifier.identify(body, headers, tenant, is_held=True)


def turn(server: ContextServer, client: ChatClient, answer: str = "Noted.", **headers: str) -> Identified:
    """One request that is answered, as a route of chats does it."""
    found = identify(server, client.body, client.headers | headers)
    assert found is not None
    session = server.store.open(found.tenant, found.params.session_id)
    with found.attempt() as attempt:
        state = adopt(session.state, client.body["messages"]).state
        client.answer(answer)
        found.answered(client.messages[-1])
        server.store.save(session, end_turn(append_answer(state, client.messages[-1])))
        attempt.is_answered = True
    server.identifier.families.check_integrity()
    return found


def text_of(server: ContextServer, session_id: str, tenant: str = "") -> str:
    return "\n".join(str(message.get("content")) for message in render(server.store.get(tenant, session_id).state))


def fold_first_user_message(server: ContextServer, session_id: str) -> None:
    session = server.store.get("", session_id)
    edit = Edit(EditKind.FOLD, messages=(1, 2))
    outcome = run_batch(session.state, [edit], ToolContext(server.tokenizer, "sculptor", "exact"), {})
    server.store.save(session, outcome.state)


def claude() -> ChatClient:
    return ChatClient(headers=dict(CLAUDE)).user(lines(40, "alpha"))


def test_a_fork_has_the_edits_of_its_main_thread(server: ContextServer) -> None:
    client = claude()
    assert turn(server, client).fields == {"found_by": "x-claude-code-session-id"}
    fold_first_user_message(server, "claude")
    summary = client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Condense the above."})
    side = turn(server, summary)
    assert side.fields == {"found_by": "x-claude-code-session-id", "thread": side.params.session_id[7:]}
    seen = text_of(server, side.params.session_id)
    assert "alpha 30 says" not in seen
    assert SUMMARY_SYSTEM in seen
    assert engine_key(server.store.get("", side.params.session_id)) == ("", "claude")
    turn(server, client.user("And now?"))
    assert "alpha 30 says" not in text_of(server, "claude"), "the main thread keeps its fold"
    fold_again = client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Condense the above."})
    assert turn(server, fold_again).params.session_id == side.params.session_id


def test_without_threads_a_title_unfolds_its_session(server: ContextServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: all requests of an id in one thread, as it was."""
    monkeypatch.setattr(families, "choose_thread", lambda *args, **kwargs: ONE_THREAD)
    client = claude()
    turn(server, client)
    fold_first_user_message(server, "claude")
    turn(server, client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title."}))
    turn(server, client.user("And now?"))
    assert "alpha 30 says" in text_of(server, "claude")


def test_a_title_that_came_first_makes_room(server: ContextServer) -> None:
    client = claude()
    title = client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title:"}, client.messages[0])
    turn(server, title, "A valley")
    main = turn(server, client)
    assert main.params.session_id == "claude"
    assert SUMMARY_SYSTEM not in text_of(server, "claude")
    assert TITLE_SYSTEM not in text_of(server, "claude")
    [side] = sides_of(server.store, "", "claude")
    assert TITLE_SYSTEM in text_of(server, side.session_id)
    moved = server.store.get("", side.session_id)
    assert engine_name(moved) == "claude", "its KV keeps its name"
    assert engine_name(server.store.get("", "claude")) == main.engine_id != "claude"
    server.store.check_integrity()


@pytest.mark.parametrize("restarts", [True, False], ids=["restart", "running on"])
def test_a_take_over_that_fails_takes_no_edits_from_the_conversation_that_came_first(
    server: ContextServer, restarts: bool
) -> None:
    """Nothing named that conversation any more: its next turn began a session without them under its old id."""
    client = claude()
    title = client.side(TITLE_SYSTEM, {"role": "user", "content": lines(40, "beta")})
    turn(server, title, "A valley")
    fold_first_user_message(server, "claude")
    failing = identify(server, client.body, client.headers)
    assert failing is not None
    with failing.attempt():
        pass
    [moved] = [head.session_id for head in sides_of(server.store, "", "claude")]
    if restarts:
        server.identifier = Identifier(store=server.store, served=server.served)
    again = turn(server, title.user("A shorter one."), "A vale")
    assert again.params.session_id == moved
    assert "beta 30 says" not in text_of(server, moved), "still folded"
    assert engine_name(server.store.get("", moved)) == "claude"
    second = turn(server, client)
    assert second.params.session_id == "claude"
    assert engine_name(server.store.get("", "claude")) == second.engine_id != "claude", "no KV of the first one moves"
    assert {head.session_id for head in server.store.list("")} == {"claude", moved}
    server.store.check_integrity()


@pytest.mark.parametrize("is_answered", [True, False], ids=["answered", "running"])
def test_what_was_set_for_an_id_stays_with_it_where_a_title_came_first(
    server: ContextServer, is_answered: bool
) -> None:
    """Also for a count that comes in front of it, and where the first request of the agent fails."""
    session, budget = server.store.open("", "claude"), server.budgets.parse({"max_tokens": 900}, "budget")
    options = PrecomputeOptions("exact")
    server.store.save(session, replace(session.state, budget=budget, precompute=options))
    client = claude()
    title = client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title:"}, client.messages[0])
    if is_answered:
        turn(server, title, "A valley")
    else:
        assert identify(server, title.body, title.headers) is not None
    counted = server.identifier.look(client.body, client.headers, "", is_held=True)
    assert counted is not None
    assert counted.foresee is not None
    told = counted.foresee()
    failing = identify(server, client.body, client.headers)
    assert failing is not None
    with failing.attempt():
        pass
    turn(server, client)
    for state in (told, server.store.get("", "claude").state):
        assert TITLE_SYSTEM not in str(state.entries)
        assert (state.budget, state.precompute) == (budget, options)
    server.store.check_integrity()


def test_a_request_that_runs_while_its_id_is_taken_over_is_not_recorded(server: ContextServer) -> None:
    client = claude()
    title = client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title:"}, client.messages[0])
    running = identify(server, title.body, title.headers)
    assert running is not None
    session = server.store.open("", running.params.session_id)
    turn(server, client)
    assert not server.store.holds(session)
    assert server.sessions._served_of(session, 0) is not server.served.of("", "claude")


def test_threads_are_known_after_a_restart(server: ContextServer) -> None:
    client = claude()
    turn(server, client)
    turn(server, client.user("And now?"))
    title = turn(server, client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title."}))
    server.identifier = Identifier(store=server.store, served=server.served)
    again = identify(server, client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title."}).body, CLAUDE)
    assert again is not None
    assert again.params.session_id == title.params.session_id
    assert turn(server, client.user("And then?")).params.session_id == "claude"


def test_a_failed_request_leaves_no_session(server: ContextServer) -> None:
    client = claude()
    turn(server, client)
    sub = ChatClient(AGENT_SYSTEM, ("read",), dict(CLAUDE)).user("Search the cellar.")
    found = identify(server, sub.body, CLAUDE)
    assert found is not None
    with pytest.raises(RuntimeError), found.attempt():
        raise RuntimeError
    assert not server.store.has("", found.params.session_id)
    assert len(server.identifier.families) == 1


@pytest.mark.parametrize("second", ["the same again", "an agent behind its title"])
def test_a_failed_request_leaves_the_session_to_one_that_came_meanwhile(server: ContextServer, second: str) -> None:
    client = claude()
    title = client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title:"}, client.messages[0])
    if second == "the same again":
        turn(server, client)
        requests = [title, title]
    else:
        requests = [title, client]
    failing, running = (identify(server, request.body, CLAUDE) for request in requests)
    assert failing is not None
    assert running is not None
    session = server.store.open("", running.params.session_id)
    with failing.attempt():
        pass
    assert server.store.holds(session)
    if second == "the same again":
        server.identifier.withdraw("", replace(failing.placement, conversation=running.placement.conversation))  # type: ignore
        assert not server.store.holds(session), "the control: nobody came meanwhile"


def test_the_oldest_side_thread_leaves_the_store(server: ContextServer) -> None:
    turn(server, claude())
    made = [
        turn(server, ChatClient(AGENT_SYSTEM, ("read",), dict(CLAUDE)).user(f"Search {n}.")).params.session_id
        for n in range(10)
    ]
    assert [server.store.has("", session_id) for session_id in made] == [False] * 2 + [True] * 8


def test_a_side_thread_that_leaves_takes_its_branches_along(server: ContextServer) -> None:
    """They stayed, though nobody could have them return any more. The branch of another thread is the control."""
    turn(server, claude())

    def asked(number: int) -> str:
        client = ChatClient(AGENT_SYSTEM, ("read",), dict(CLAUDE)).user(f"Search {number}.")
        return turn(server, client).params.session_id

    sides = [asked(number) for number in range(families.MAX_SIDE_THREADS)]
    branches = [make_branch(server, server.store.get("", side), "look", "Look around.") for side in sides[:2]]
    asked(families.MAX_SIDE_THREADS)
    assert [server.store.has("", side) for side in sides[:2]] == [False, True]
    assert [server.store.holds(branch) for branch in branches] == [False, True]
    server.store.check_integrity()


def test_a_redaction_drops_the_forks(server: ContextServer) -> None:
    client = claude()
    turn(server, client)
    side = turn(server, client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Condense."}))
    title = turn(server, client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title."}))
    session = server.store.get("", "claude")
    server._redacted(session, session.state)
    assert not server.store.has("", side.params.session_id)
    assert server.store.has("", title.params.session_id)


@pytest.mark.parametrize("redacted", ["moved", "new"])
def test_after_a_take_over_a_redaction_drops_the_copies_of_its_own_thread(server: ContextServer, redacted: str) -> None:
    """Forks of a thread that was moved, and branches, share its KV and none of the thread that has the id now."""
    client = claude()
    title = client.side(TITLE_SYSTEM, *client.messages)
    turn(server, title)
    agent = ChatClient(SUMMARY_SYSTEM, ("read",), dict(CLAUDE), messages=list(title.messages)).user("Condense.")
    old = turn(server, agent, **{"x-claude-code-agent-id": "old"}).params.session_id
    parents = [server.store.get("", session_id) for session_id in ("claude", old)]
    branches = [make_branch(server, parent, "look", "Look at it.").session_id for parent in parents]
    turn(server, client)
    [moved] = [head.session_id for head in sides_of(server.store, "", "claude") if head.session_id != old]
    ask = {"role": "user", "content": "Condense."}
    new = turn(server, client.side(SUMMARY_SYSTEM, *client.messages, ask)).params.session_id
    copies = [old, *branches, new]
    named = [engine_name(server.store.get("", session_id)) for session_id in (moved, *copies, "claude")]
    assert named[:4] == ["claude"] * 4
    assert named[4] == named[5] != "claude"
    session = server.store.get("", moved if redacted == "moved" else "claude")
    asyncio.run(server.editor.edit(session, [Edit(EditKind.REDACT, messages=(1, 2))], "exact"))
    assert "alpha" not in text_of(server, session.session_id)
    assert server.store.has("", moved)
    assert server.store.has("", "claude")
    left = [server.store.has("", session_id) for session_id in copies]
    assert left == ([False] * 3 + [True] if redacted == "moved" else [True] * 3 + [False])


def taken_over(server: ContextServer, num_branches: int = 1) -> tuple[Session, Session, list[Session]]:
    """A title that came first and its branches, and the conversation that took its id over: what was and what is."""
    client = claude()
    turn(server, client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title:"}, client.messages[0]))
    title = server.store.get("", "claude")
    branches = [make_branch(server, title, "look", "Look at it.") for _ in range(num_branches)]
    turn(server, client)
    [moved] = [server.store.get(*head.key) for head in sides_of(server.store, "", "claude")]
    return moved, server.store.get("", "claude"), branches


def test_a_branch_goes_with_the_conversation_that_it_is_of(server: ContextServer) -> None:
    """Both conversations have one mark. The branch returned into the one that had taken the id over."""
    moved, new, (branch, other) = taken_over(server, 2)
    assert branch.state.parent is not None
    assert branch.state.parent.session_id == moved.session_id
    assert engine_name(branch) == engine_name(moved) == "claude"
    assert [head.session_id for head in branches_of(server.store, moved)] == [branch.session_id, other.session_id]
    assert branches_of(server.store, new) == []
    with pytest.raises(NotFound, match="is no branch of 'claude'"):
        check_branch_of(branch, new)
    check_branch_of(branch, moved)
    give_back(server, branch, moved, "It is about alpha.")
    assert "It is about alpha." in text_of(server, moved.session_id)
    assert "It is about alpha." not in text_of(server, "claude")
    assert adopt(other.state, [*sent(moved), {"role": "user", "content": "Look."}]).dropped == (), "it goes on"
    server.store.check_integrity()


def test_a_side_thread_keeps_its_branches_where_its_name_in_the_engine_changes(server: ContextServer) -> None:
    """A side thread that is told again goes by the name of the main thread. Nobody else can have its id."""
    moved, _, (branch,) = taken_over(server)
    assert moved.state.thread is not None
    server.store.save(moved, replace(moved.state, thread=replace(moved.state.thread, engine_id="claude~main")))
    assert engine_name(branch) != engine_name(moved)
    assert [head.session_id for head in branches_of(server.store, moved)] == [branch.session_id]
    check_branch_of(branch, moved)


def test_a_fork_that_begins_anew_in_a_side_thread_has_none_of_its_branches(server: ContextServer) -> None:
    """What the branch returned went into another conversation, of the main thread's words."""
    moved, _, (branch,) = taken_over(server)
    client = claude()
    turn(server, client)
    turn(server, client.side(TITLE_SYSTEM, *client.messages, {"role": "user", "content": "And the title?"}))
    fork = server.store.get("", moved.session_id)
    assert fork.state.thread is not None
    assert fork.state.thread.is_fork
    assert branches_of(server.store, fork) == []
    assert not server.store.has(*branch.key)


def test_a_branch_that_cannot_be_moved_is_not_of_the_conversation_that_has_the_id(
    server: ContextServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = server.store.save

    def full(session: Session, state: SessionState) -> None:
        if state.parent is not None and MARK in state.parent.session_id:
            raise Conflict("session_id", "is too large.")
        save(session, state)

    monkeypatch.setattr(server.store, "save", full)
    _, new, (branch,) = taken_over(server)
    assert branch.state.parent is not None
    assert branch.state.parent.session_id == new.session_id, "the mark of its parent is that of the new one, too"
    assert branches_of(server.store, new) == []
    with pytest.raises(NotFound, match="is no branch of 'claude'"):
        check_branch_of(branch, new)


@pytest.mark.parametrize("moves", [True, False], ids=["moved", "control"])
def test_a_loop_that_fails_does_not_bring_the_old_parent_back(server: ContextServer, moves: bool) -> None:
    client = claude()
    turn(server, client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title:"}, client.messages[0]))
    branch = make_branch(server, server.store.get("", "claude"), "look", "Look at it.")
    before = branch.state
    with undoable(server.sessions, branch, before) as undo:
        server.store.save(branch, adopt(before, [*sent(branch), {"role": "user", "content": "Look."}]).state)
        if moves:
            turn(server, client)
        undo()
    assert (branch.state is before) is not moves
    assert branch.state.entries == before.entries
    [moved] = [head.session_id for head in sides_of(server.store, "", "claude")] or ["claude"]
    assert branch.state.parent is not None
    assert branch.state.parent.session_id == moved
    assert branches_of(server.store, server.store.get("", moved))


def sent(session: Session) -> list[Any]:
    """What the client of a session holds of it."""
    return [entry.message for entry in session.state.entries if entry.origin is not Author.INTERNAL]


def test_what_was_redacted_is_cut_out_of_a_conversation_that_is_retold(server: ContextServer) -> None:
    """The client's own compaction sends the text again, glued to everything else."""
    client = claude()
    for number in range(3):
        turn(server, client, answer=lines(4, f"answer {number}"))
        client.user(lines(12, f"note {number}"))
    turn(server, client)
    told = "\n\n".join(f"[{message['role']}]: {message['content']}" for message in client.messages)
    before = turn(server, client.side(SUMMARY_SYSTEM, {"role": "user", "content": told})).params.session_id
    assert "alpha 30 says" in text_of(server, before), "the control: nothing was redacted yet"
    session = server.store.get("", "claude")
    edit = Edit(EditKind.REDACT, messages=(1, 2))
    redacted = run_batch(session.state, [edit], ToolContext(server.tokenizer, "sculptor", "exact"), {}).state
    server.store.save(session, redacted)
    server._redacted(session, session.state)
    assert not server.store.has("", before)
    for _ in range(2):
        side = turn(server, client.side(SUMMARY_SYSTEM, {"role": "user", "content": told})).params.session_id
        retold = server.store.get("", side).state
        retold.check_integrity()
        assert "alpha" not in text_of(server, side)
        assert "note 2 7 says" in text_of(server, side)
        assert "[redacted " in text_of(server, side)
    assert not any("alpha" in str(entry.message) for entry in retold.entries)
    made, state = retold.new_id("f")
    assert made not in {fragment.fragment_id for fragment in state.fragments}


@pytest.mark.parametrize("restarts", [False, True], ids=["known", "restarted"])
def test_what_was_redacted_is_cut_out_of_a_side_thread_that_cannot_be_told_for_a_fork(
    server: ContextServer, restarts: bool
) -> None:
    """Of what is stored nobody knows how the history began. A side thread that was there before stays what it was."""
    client = claude()
    for number in range(3):
        turn(server, client, answer=lines(4, f"answer {number}"))
        client.user(lines(12, f"note {number}"))
    turn(server, client)
    title = client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title."})
    titled = turn(server, title).params.session_id
    before = server.store.get("", titled).state
    session = server.store.get("", "claude")
    asyncio.run(server.editor.edit(session, [Edit(EditKind.REDACT, messages=(1, 2))], "exact"))
    if restarts:
        server.identifier = Identifier(store=server.store, served=server.served)
    summary = client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Condense the above."})
    counted = server.identifier.look(summary.body, summary.headers, "", is_held=True)
    assert counted is not None
    assert counted.foresee is not None
    assert counted.foresee().redacted == session.state.redacted
    found = turn(server, summary)
    assert found.placement is not None
    assert (found.placement.forked_from is None) is restarts
    state = server.store.get("", found.params.session_id).state
    state.check_integrity()
    assert not any("alpha" in str(entry.message) for entry in state.entries)
    assert "note 2 7 says" in text_of(server, found.params.session_id)
    turn(server, title.user("Another one."))
    assert server.store.get("", titled).state.entries[: len(before.entries)] == before.entries


def test_a_later_redaction_drops_a_side_thread_that_could_not_be_told_for_a_fork(server: ContextServer) -> None:
    """It began with what was redacted until then, and kept what was redacted behind that. So did the engine."""
    client = claude()
    turn(server, client)
    early = turn(server, client.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title."})).params.session_id
    turn(server, client.user(lines(12, "beta")))
    session = server.store.get("", "claude")
    asyncio.run(server.editor.edit(session, [Edit(EditKind.REDACT, messages=(1, 2))], "exact"))
    server.identifier = Identifier(store=server.store, served=server.served)
    summary = client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Condense the above."})
    side = turn(server, summary).params.session_id
    held = server.store.get("", side)
    assert "beta" in text_of(server, side)
    assert engine_name(held) == side, "it is not known for a fork"
    asyncio.run(server.editor.edit(held, [Edit(EditKind.REDACT, messages=(0, 1))], "exact"))
    assert server.store.has("", "claude"), "its own redaction is nobody else's"
    asyncio.run(server.editor.edit(session, [Edit(EditKind.REDACT, messages=(3, 4))], "exact"))
    assert [server.store.has("", name) for name in (side, early, "claude")] == [False, True, True]
    again = turn(server, summary).params.session_id
    made = server.store.get("", again)
    assert not any(word in str(made.state.entries) for word in ("alpha", "beta"))
    assert server.sessions.must_forget(made) is (again == side)


def test_a_branch_has_no_threads(server: ContextServer) -> None:
    client = ChatClient(extra={"session_id": "parent"}).user(lines(40, "alpha"))
    turn(server, client)
    branch = make_branch(server, server.store.get("", "parent"), "look", "Look at it.")
    other = ChatClient(AGENT_SYSTEM, ("paint",), extra={"session_id": branch.session_id}).user("Something else.")
    found = identify(server, other.body, {})
    assert found is not None
    assert found.params.session_id == branch.session_id
    assert found.placement is None


def test_the_id_of_a_side_thread_names_that_session(server: ContextServer) -> None:
    """Whoever is told the id may use it, also after a restart."""
    turn(server, claude())
    sub = ChatClient(AGENT_SYSTEM, ("read",), dict(CLAUDE)).user("Search the cellar.")
    side = turn(server, sub).params.session_id
    for _ in range(2):
        again = turn(server, ChatClient(extra={"session_id": side}).user("Something else."))
        assert (again.params.session_id, again.engine_id, again.placement) == (side, side, None)
        server.identifier = Identifier(store=server.store, served=server.served)
    assert server.store.get("", side).state.thread is not None


def inferring(**options: Any) -> ContextServer:
    server = make_server(**options)
    server.identifier = Identifier(infers=True, store=server.store, served=server.served)
    return server


def test_a_request_without_an_id_is_found_by_content() -> None:
    server = inferring()
    client = ChatClient().user(lines(40, "alpha"))
    first = turn(server, client)
    assert first.fields == {"found_by": "new"}
    fold_first_user_message(server, first.params.session_id)
    second = turn(server, client.user("And now?"))
    assert (second.params.session_id, second.fields) == (first.params.session_id, {"found_by": "content"})
    assert "alpha 30 says" not in text_of(server, first.params.session_id)
    named = turn(server, ChatClient(headers=dict(CLAUDE), messages=client.messages).user("Go on."))
    assert named.params.session_id == "claude", "an id counts more than the content"


def test_a_summary_of_the_first_part_is_a_fork_of_a_session_that_nobody_names() -> None:
    """It has the edits, what is redacted is cut out of it, and the session does not change."""
    server = inferring()
    client = ChatClient().user(lines(40, "alpha"))
    for n in range(6):
        session_id = turn(server, client, f"Page {n} is about the harbour.").params.session_id
        client.user(f"Read page {n + 1}, which begins so: {lines(6, f'page {n}')}")
    turn(server, client)
    fold_first_user_message(server, session_id)
    state = server.store.get("", session_id).state

    def summed() -> Identified:
        ask = {"role": "user", "content": "Condense the above."}
        found = turn(server, client.side(SUMMARY_SYSTEM, *client.messages[:7], ask))
        assert found.found_by == "content"
        assert (found.family, found.engine_id) == (session_id, session_id)
        assert found.params.session_id != session_id
        return found

    seen = text_of(server, summed().params.session_id)
    assert "alpha 30 says" not in seen
    assert "page 2 3 says" in seen
    assert server.store.get("", session_id).state == state
    edit = Edit(EditKind.REDACT, messages=(5, 6))
    session = server.store.get("", session_id)
    redacted = run_batch(session.state, [edit], ToolContext(server.tokenizer, "sculptor", "exact"), {}).state
    server.store.save(session, redacted)
    server._redacted(session, session.state)
    seen = text_of(server, summed().params.session_id)
    assert "page 0 3 says" in seen
    assert "page 1 3 says" not in seen


def test_a_session_that_nobody_names_goes_on_from_its_summary_alone() -> None:
    """It is the main thread's next turn: what is still there keeps its edits, and the rest is told as dropped."""
    server = inferring()
    client = ChatClient().user(lines(40, "alpha")).answer("I know the valley.").user(lines(40, "beta"))
    first = turn(server, client)
    fold_first_user_message(server, first.params.session_id)
    turn(server, client.user("And now?"))
    session = server.store.get("", first.params.session_id)
    edit = Edit(EditKind.FOLD, messages=(3, 4))
    folded = run_batch(session.state, [edit], ToolContext(server.tokenizer, "sculptor", "exact"), {}).state
    server.store.save(session, folded)
    summary = " ".join(f"Page {n} of the valley's book was read." for n in range(6))
    side = turn(server, client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Sum up."}), summary)
    assert (side.found_by, side.family) == ("content", first.params.session_id)
    num_turns = server.store.get("", first.params.session_id).state.num_turns
    after = ChatClient(messages=[*client.messages[:2], {"role": "user", "content": summary}])
    after.answer("I have read the notes.").user("Go on.")
    dropped = adopt(folded, after.body["messages"]).dropped
    found = turn(server, after)
    assert (found.params.session_id, found.fields) == (first.params.session_id, {"found_by": "summary"})
    assert [edit.kind for edit in dropped] == ["fragment"]
    seen = text_of(server, first.params.session_id)
    assert "alpha 30 says" not in seen, "its fold is still there"
    assert "Page 3 of the valley's book" in seen
    assert "beta 3 says" not in seen
    assert server.store.get("", first.params.session_id).state.num_turns > num_turns
    again = turn(server, after.user("And at last?"))
    assert (again.params.session_id, again.fields) == (first.params.session_id, {"found_by": "content"})


def test_nothing_is_found_across_keys_or_salts() -> None:
    server = inferring(has_api_keys=True)
    client = ChatClient().user(lines(40, "alpha"))
    sessions = set()
    tenants = [
        {"authorization": "Bearer a"},
        {"authorization": "Bearer b"},
        {"authorization": "Bearer a", "x-cache-salt": "s"},
        {"authorization": "Bearer a", "x-cache-salt": "t"},
    ]
    for headers in tenants:
        mine = ChatClient(messages=list(client.messages), headers=headers)
        first = turn(server, mine)
        assert first.found_by == "new"
        assert turn(server, mine.user("And now?")).params.session_id == first.params.session_id
        client.messages = mine.messages
        sessions.add(first.params.session_id)
    assert len(sessions) == len(tenants)


def test_inference_is_off_unless_asked_for(server: ContextServer) -> None:
    assert identify(server, ChatClient().user("Hello.").body, {}) is None
    with pytest.raises(InvalidRequest):
        identify(server, ChatClient(extra={"acm": {}}).user("Hello.").body, {})
    asked = identify(inferring(), ChatClient(extra={"acm": {}}).user("Hello.").body, {})
    assert asked is not None
    assert identify(inferring(), ChatClient(extra={"n": 2}).user("Hello.").body, {}) is None


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"messages": None}, {"messages": {}}, {"messages": [1, None, "x", {"role": 7, "content": {}}]}],
)
def test_any_body_is_read(body: object) -> None:
    found = identify(inferring(), body, CLAUDE)
    assert found is None or found.params.session_id == "claude"


def test_a_body_that_is_no_strict_json_is_not_refused_for_a_clients_id(server: ContextServer) -> None:
    body = ChatClient(extra={"odd": float("nan")}).user("Hello.").body
    assert identify(server, body, CLAUDE) is None
    assert identify(server, body | {"session_id": "ours"}, CLAUDE) is not None


def test_a_response_names_the_session_that_gave_it(server: ContextServer) -> None:
    server.identifier.responses.note("", "resp_1", "claude")
    body = ChatClient(extra={"previous_response_id": "resp_1"}).user("Go on.").body
    found = identify(server, body, {})
    assert found is not None
    assert (found.params.session_id, found.found_by) == ("claude", "previous_response_id")
    assert identify(server, body | {"previous_response_id": "resp_2"}, {}) is None


def test_a_response_of_another_session_leads_out_of_none_that_a_client_of_ours_names(server: ContextServer) -> None:
    """It is not held there, which the route says. A thread of the named session gave its answers there."""
    server.identifier.responses.note("", "resp_1", "old")
    body = ChatClient(extra={"previous_response_id": "resp_1"}).user("Go on.").body
    for found in (
        identify(server, body | {"session_id": "new"}, {}),
        server.identifier.look(body | {"session_id": "new"}, {}, "", is_held=True),
    ):
        assert found is not None
        assert (found.params.session_id, found.engine_id) == ("new", "new")
    theirs = identify(server, body, CLAUDE)
    assert theirs is not None
    assert theirs.params.session_id == "old", "an id of a client's own may name a cache"
    for family in ("new", "long" * 64):
        server.identifier.responses.note("", "resp_2", derived_id(family, "task-1a2b"))
        own = identify(server, body | {"session_id": family, "previous_response_id": "resp_2"}, {})
        assert own is not None
        assert own.params.session_id == derived_id(family, "task-1a2b")


def test_responses_are_bounded_and_shared_fairly() -> None:
    responses = ResponseSessions(64)
    responses.note("small", "resp", "s")
    for n in range(500):
        responses.note("greedy", f"resp-{n}", "g")
        responses.check_integrity()
    assert responses.of("small", "resp") == "s"
    assert responses.of("greedy", "resp-499") == "g"
    assert responses.of("greedy", "resp") is None
    responses._max_responses = 1
    with pytest.raises(IntegrityError):
        responses.check_integrity()


def test_a_list_of_places_holds_for_a_server() -> None:
    server = make_server()
    server.identifier = Identifier(parse_sources("header:x-run"), store=server.store, served=server.served)
    assert identify(server, claude().body, CLAUDE) is None
    found = identify(server, claude().body, {"x-run": "r"})
    assert found is not None
    assert (found.params.session_id, found.found_by) == ("r", "x-run")
