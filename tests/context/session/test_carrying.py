"""What becomes of a session's edits, one by one, when a client's history has changed in the middle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.alignment import core_text
from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_between, cut_messages
from acmserve.context.session.branches.branch import open_of
from acmserve.context.session.branches.branching import Spent
from acmserve.context.session.branches.fork import fork, place_result
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.carrying.carry_over import UNKNOWN_REDACTION
from acmserve.context.session.history import adopt, append_answer, append_internal
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.tools.search.exact import search_exact
from acmserve.context.transcript.message import Message, digest_message
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from tests.support.context.branching import answered, opened_in, returned, step, tool_call, worked
from tests.support.context.conversation import KEY, WORDS, assistant, contents, lines, state_of, user
from tests.support.context.positional import adopt_by_position
from tests.support.context.states import MESSAGES
from tests.support.context.valid_chat import orphans

LOG, OTHER = lines(20), lines(20, name="other")
SECRET = "The harbour's safe opens with 4711-0815 on every second Monday.\n"


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def folded(state: SessionState, entry: int) -> SessionState:
    cut = cut_messages(state, entry, entry + 1, WORDS)
    return edits.fold(cut.state, cut.fragments[0].fragment_id, "sculptor", WORDS)


def redacted(state: SessionState, entry: int) -> SessionState:
    cut = cut_messages(state, entry, entry + 1, WORDS)
    return edits.redact(cut.state, cut.fragments[0].fragment_id)


def kinds(adoption: Any) -> list[str]:
    return [edit.kind for edit in adoption.dropped]


@given(st.lists(MESSAGES, max_size=5), st.lists(MESSAGES, max_size=4))
def test_an_append_is_what_it_was(messages: list[Message], more: list[Message]) -> None:
    """Beside the comparison by position of the first version. Only digests are others."""
    state = adopt(SessionState(digest_key=KEY), messages).state
    new, old = adopt(state, [*messages, *more]), adopt_by_position(state, [*messages, *more])
    assert [replace(e, digest=b"") for e in new.state.entries] == [replace(e, digest=b"") for e in old.state.entries]
    assert replace(new.state, entries=()) == replace(old.state, entries=())
    assert new.dropped == ()
    assert all(a.message is b for a, b in zip(new.state.entries, [*messages, *more], strict=True))
    assert adopt(new.state, [*messages, *more]).state == new.state


def test_a_message_in_front_shifts_what_is_behind() -> None:
    state = search_exact(folded(state_of(user("Go."), user(LOG), user("needle")), 1), "needle", "user", 9, 9).state
    adoption = adopt(state, [system("New."), user("Go."), user(LOG), user("needle")])
    adoption.state.check_integrity()
    assert adoption.dropped == ()
    assert contents(adoption.state)[2].startswith("[folded")
    assert [hit.place.entry for hit in adoption.state.hits] == [3]
    assert adoption.num_known == 3


def test_an_internal_call_follows_its_answer_and_goes_with_it() -> None:
    state = answered(append_internal(state_of(user("q1")), step(tool_call("search"))), assistant("a long answer " * 9))
    answer = client_of(state)[-1]
    moved = adopt(state, [user("in front"), user("q1"), answer, user("q2")])
    assert [m["role"] for m in render(moved.state)] == ["user", "user", "assistant", "tool", "assistant", "user"]
    glued = adopt(state, [user("q1"), {**answer, "content": answer["content"] + "!"}, user("q2")])
    assert [m["role"] for m in render(glued.state)] == ["user", "assistant", "tool", "assistant", "user"]
    gone = adopt(state, [user("q1"), assistant("something else"), user("q2")])
    assert [m["role"] for m in render(gone.state)] == ["user", "assistant", "user"]


def test_a_call_that_went_with_its_answer_in_the_middle_is_told() -> None:
    state = answered(append_internal(state_of(user("q1")), step(tool_call("search"))), assistant("first answer"))
    history = [*client_of(state), user("a second question")]
    adoption = adopt(adopt(state, history).state, [history[0], history[2]])
    assert kinds(adoption) == ["turn"]
    assert [m["role"] for m in render(adoption.state)] == ["user", "user"]


def client_of(state: SessionState) -> list[Message]:
    return [entry.message for entry in state.entries if entry.digest]


def test_renamed_ids_reach_sealed_entries_so_that_nothing_is_orphaned() -> None:
    calls = [tool_call("read", "c1"), tool_call("fold_fragment", "own")]
    state = append_answer(
        state_of(user("q")), {**assistant(""), "tool_calls": calls}, {**assistant(""), "tool_calls": calls[:1]}
    )
    state = append_internal(state, [{"role": "tool", "tool_call_id": "own", "content": "Folded."}])
    history = [
        user("q"),
        {**assistant(""), "tool_calls": calls[:1]},
        {"role": "tool", "tool_call_id": "c1", "content": LOG},
    ]
    state = redacted(adopt(state, history).state, 3)
    renamed = [
        user("q"),
        {**assistant(""), "tool_calls": [{**calls[0], "id": "new"}]},
        result("new", LOG),
        user("And now?"),
    ]
    adoption = adopt(state, renamed)
    assert orphans(render(adoption.state)) == []
    assert adoption.dropped == ()
    assert "line 3" not in str(render(adoption.state))
    assert [call["id"] for call in render(adoption.state)[1]["tool_calls"]] == ["new", "own"]


def test_a_message_inside_a_closed_branch_ends_it_and_what_follows_is_shown() -> None:
    state = worked(opened_in(state_of(user("Find the port."))), step(tool_call("grep")))
    asked = {"role": "assistant", "content": None, "tool_calls": [tool_call("weather", "w1")]}
    state = adopt(answered(state, asked), [user("Find the port."), asked, result("w1", "Rain.")]).state
    state = answered(returned(worked(state, step(tool_call("read")))), assistant("It is port 8000."))
    history = client_of(state)
    assert open_of(state.branches) is None
    same = adopt(state, history)
    assert same.state == state
    adoption = adopt(state, [*history[:3], user("Stop that."), *history[3:]])
    adoption.state.check_integrity()
    assert kinds(adoption) == ["branch"]
    assert adoption.state.branches[0].failed
    assert "Stop that." in contents(adoption.state)
    assert "ended without a result" in str(contents(adoption.state))
    assert orphans(render(adoption.state)) == []
    assert adopt(adoption.state, [*history[:3], user("Stop that."), *history[3:]]).state == adoption.state


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_a_branch_survives_a_changed_system_message() -> None:
    state = state_of(system("Date: one.\n" + LOG), user("Find it."))
    state = answered(returned(worked(opened_in(state), step(tool_call("grep")))), assistant("It is 8000."))
    adoption = adopt(state, [system("Date: two.\n" + LOG), *client_of(state)[1:], user("And?")])
    assert adoption.dropped == ()
    assert adoption.state.branches == state.branches
    assert contents(adoption.state)[1:] == [*contents(state)[1:], "And?"]


STEPS = [*step(tool_call("read", "c1"), result=LOG), *step(tool_call("read", "c2"), result=OTHER)]


def evicted(*front: Message, entries: dict[int, MessageOmissions] | None = None) -> SessionState:
    """Two steps and an answer: the first step is left out."""
    state = state_of(*front, *STEPS, assistant("Both are read."), user("Go on."))
    start = len(front)
    return replace(state, omissions=Omissions(((start, start + 2),), entries or {}))


def test_what_is_left_out_stays_so_and_what_is_new_between_is_shown() -> None:
    state = evicted(user("Read."))
    history = client_of(state)
    adoption = adopt(state, [system("New."), history[0], *history[1:3], user("Between."), *history[3:]])
    adoption.state.check_integrity()
    assert adoption.dropped == ()
    shown = render(adoption.state)
    assert [m.get("content") for m in shown] == ["New.", "Read.", "Between.", None, OTHER, "Both are read.", "Go on."]


def test_a_cleared_result_of_a_step_that_is_left_out_stays_left_out() -> None:
    state = evicted(user("Read."))
    history = [dict(message) for message in client_of(state)]
    history[2]["content"] = "[Old tool result content cleared]"
    adoption = adopt(state, history)
    assert adoption.dropped == ()
    assert len(render(adoption.state)) == len(history) - 2
    assert orphans(render(adoption.state)) == []


def test_a_rewind_to_a_step_that_is_left_out_shows_it_and_says_so() -> None:
    state = evicted(user("Read."))
    adoption = adopt(state, client_of(state)[:3])
    assert kinds(adoption) == ["omission"]
    assert render(adoption.state) == client_of(state)[:3]


def test_a_summary_goes_to_the_message_before_when_its_own_is_gone() -> None:
    kept = {3: MessageOmissions(True, True, frozenset({0}), summary="Two files were read.")}
    state = evicted(user("Read."), entries=kept)
    history = client_of(state)
    adoption = adopt(state, [*history[:3], *history[5:]])
    adoption.state.check_integrity()
    assert [m.get("content") for m in render(adoption.state)] == [
        "Read.",
        "Two files were read.",
        "Both are read.",
        "Go on.",
    ]
    alone = adopt(state, [history[0], *history[5:]])
    assert alone.state.omissions == Omissions()
    assert [m.get("content") for m in render(alone.state)] == ["Read.", "Both are read.", "Go on."]


@pytest.mark.parametrize("has_room", [True, False])
def test_many_results_of_searches_in_a_changed_message_cost_one_search(
    monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    searched: list[str] = []
    positions = core_text._positions

    def counted(text: str, sought: str) -> list[int]:
        searched.append(sought)
        return positions(text, sought)

    monkeypatch.setattr(core_text, "_positions", counted)
    if not has_room:
        monkeypatch.setattr(core_text, "_MAX_LOOKED_THROUGH", 0)
    log = "the needle lies in the hay\n" * 200
    state = state_of(user("Go."), user(log), user("Well?"))
    for _ in range(20):
        state = search_exact(state, "the needle lies", "user", 50, 9).state
    state = cut_between(state, "lies", "hay", 1, "user", WORDS).state
    adoption = adopt(state, [user("Go."), user(f"X{log}Y"), user("Well?")])
    adoption.state.check_integrity()
    assert len(searched) == (2 if has_room else 0)
    assert len(adoption.state.hits) == (1000 if has_room else 0)
    assert kinds(adoption) == ([] if has_room else ["fragment", "search_results"])
    for hit in adoption.state.hits:
        assert log[hit.start - 1 : hit.end - 1] == "the needle lies"


def test_calls_that_are_others_now_are_not_left_out() -> None:
    state = evicted(user("Read."), entries={3: MessageOmissions(calls=frozenset({0}))})
    history = [dict(message) for message in client_of(state)]
    history[3] = {**history[3], "content": "I read another one.", "tool_calls": [tool_call("read", "c2", path="b")]}
    adoption = adopt(state, history)
    assert "I read another one." in contents(adoption.state)
    assert orphans(render(adoption.state)) == []


def test_what_a_branch_session_returned_stays_behind_what_it_stood_behind() -> None:
    state = answered(state_of(system("Date: 1.\n" + LOG), user("q1")), assistant("Started."))
    parent = Parent("p", "m", "the port", "Which?", 2, 2)
    placed = place_result(state, "b1", parent, "8000.", Spent(1, 2))
    history = [*client_of(state), user("Good.")]
    grown = adopt(placed, history).state
    changed = adopt(grown, [system("Date: 2.\n" + LOG), *history[1:]])
    assert changed.dropped == ()
    assert [m["role"] for m in render(changed.state)] == ["system", "user", "assistant", "assistant", "tool", "user"]
    inserted = adopt(grown, [history[0], user("in front"), *history[1:]])
    assert inserted.state.branches[0].call_entry == placed.branches[0].call_entry + 1
    inserted.state.check_integrity()


def test_a_fork_knows_what_it_had_from_its_parent_after_a_changed_system_message() -> None:
    state = answered(state_of(system("Date: 1.\n" + LOG), user("q1")), assistant("Started."))
    child = fork(state, "parent", "d", "p")
    adoption = adopt(child, [system("Date: 2.\n" + LOG), user("new"), *client_of(state)[1:], user("Which?")])
    assert adoption.num_of_parent == 3
    assert adoption.state.parent is not None
    assert (adoption.state.parent.num_entries, adoption.state.parent.num_messages) == (4, 4)
    assert adopt(child, [system("Else."), user("q2")]).num_of_parent == 0


@pytest.mark.parametrize(
    "again",
    [
        [{"type": "text", "text": SECRET}],
        SECRET + "\n<reminder>Be brief.</reminder>",
        [{"type": "text", "text": "<reminder>Be brief.</reminder>"}, {"type": "text", "text": SECRET}],
        SECRET.strip(),
        f"Before it stands this. {SECRET}",
    ],
)
def test_a_redacted_text_stays_out_in_every_spelling(again: Any) -> None:
    state = redacted(state_of(user("Keep this."), user(SECRET)), 1)
    for history in (
        [user("Keep this."), user(again)],
        [user(again)],
        [user("a"), user("b"), assistant("c"), user(again)],
    ):
        adoption = adopt(state, history)
        adoption.state.check_integrity()
        assert "4711" not in repr(adoption.state)
        assert "[redacted f9e375: " in str(contents(adoption.state))
        assert adopt(adoption.state, history).state == adoption.state


def test_a_redacted_text_that_was_gone_is_cut_out_when_it_comes_back() -> None:
    state = redacted(state_of(user("Keep this."), user(SECRET)), 1)
    gone = adopt(state, [user("Keep this.")])
    assert kinds(gone) == ["redaction"]
    assert gone.state.fragments == ()
    back = adopt(gone.state, [user("Keep this."), user("x"), user(f"I said: {SECRET}")])
    assert contents(back.state) == ["Keep this.", "x", "I said: [redacted f9e375: 16 tokens removed]\n"]
    assert "4711" not in repr(back.state)


def as_stored_before(state: SessionState, sent: list[Message]) -> SessionState:
    """The state as the first version stored it: digests of the old form, and no texts known by blocks."""
    entries = tuple(replace(e, digest=digest_message(m, KEY)) for e, m in zip(state.entries, sent, strict=True))
    value = state_value(replace(state, entries=entries, redacted=())) | {"version": 2}
    return state_from(value, "Session 'a'")


def test_a_session_of_the_first_version_knows_its_history_and_what_was_redacted() -> None:
    sent = [user("Keep this."), user(SECRET), user(LOG)]
    old = as_stored_before(folded(redacted(state_of(*sent), 1), 2), sent)
    adoption = adopt(old, [*sent, user("new")])
    assert (adoption.num_known, adoption.dropped) == (3, ())
    assert {len(entry.digest) for entry in adoption.state.entries} == {17}
    assert "4711" not in repr(adoption.state)
    again = adopt(adoption.state, [user("Keep this."), user(SECRET + "\nBe brief."), user(LOG)])
    assert "4711" not in repr(again.state)
    assert contents(again.state)[2].startswith("[folded")


def test_a_session_of_the_first_version_that_only_grows_gets_new_digests() -> None:
    sent = [user("Keep this."), user(LOG)]
    adoption = adopt(as_stored_before(state_of(*sent), sent), [*sent, user("new")])
    assert {len(entry.digest) for entry in adoption.state.entries} == {17}


@pytest.mark.parametrize("again", [[{"type": "text", "text": SECRET}], SECRET + "Be brief.", "quite other words"])
def test_a_text_that_the_first_version_redacted_stays_out_before_it_was_seen_again(again: Any) -> None:
    """Of such a text nothing is known until its message comes in the words of then. So its message stays as it is."""
    sent = [user("Keep this."), user(SECRET)]
    old = as_stored_before(redacted(state_of(*sent), 1), sent)
    adoption = adopt(old, [user("Keep this."), user(again), user("new")])
    assert "4711" not in repr(adoption.state)
    assert contents(adoption.state)[1].startswith("[redacted f9e375: ")
    if isinstance(again, str):
        assert [edit.reason for edit in adoption.dropped] == [UNKNOWN_REDACTION]


CALLED = {**assistant("First I look, then I edit."), "tool_calls": [tool_call("grep", "c1"), tool_call("edit", "c2")]}


def test_a_result_of_a_call_that_is_new_is_shown_and_told() -> None:
    state = evicted(user("Read."))
    history = client_of(state)
    replaced = {**history[1], "tool_calls": [tool_call("write", "c1", text="[pruned]")]}
    adoption = adopt(state, [history[0], replaced, *history[2:], user("And?")])
    assert kinds(adoption) == ["omission"]
    assert adoption.state.omissions == Omissions()
    assert LOG in contents(adoption.state)


def test_a_new_result_of_a_call_that_is_left_out_counts_as_left_out() -> None:
    state = evicted(user("Read."))
    history = client_of(state)
    adoption = adopt(state, [*history[:2], result("c1", "quite something else " * 20), *history[3:]])
    assert adoption.dropped == ()
    assert adoption.state.omissions == Omissions(((1, 3),))


def test_a_new_observation_of_a_text_that_is_left_out_counts_as_left_out() -> None:
    history = [user("Go."), assistant("I run ```ls```"), user("<output>a b c</output>"), assistant("Done."), user("ok")]
    state = replace(state_of(*history), omissions=Omissions(((1, 3),)))
    assert state.observations == {2}
    other = [*history[:2], user("<output>" + "quite another thing " * 9 + "</output>"), *history[3:]]
    assert adopt(state, other).state.omissions == Omissions(((1, 3),))


def test_an_observation_that_is_shown_again_is_told() -> None:
    seen = user("<output>" + "a line of text " * 9 + "</output>")
    history = [user("Go."), assistant("I run ```ls```"), seen, assistant("Done."), user("ok")]
    state = replace(state_of(*history), omissions=Omissions(((1, 3),)))
    adoption = adopt(state, [history[0], assistant("Quite another command."), *history[2:]])
    assert seen in render(adoption.state)
    assert kinds(adoption) == ["omission"]


def test_a_result_that_was_cleared_by_a_call_that_is_no_more_is_told() -> None:
    state = replace(evicted(user("Read.")), omissions=Omissions((), {1: MessageOmissions(cleared=frozenset({0}))}))
    history = client_of(state)
    replaced = {**history[1], "tool_calls": [tool_call("write", "c1", text="[pruned]")]}
    adoption = adopt(state, [history[0], replaced, *history[2:]])
    assert LOG in contents(adoption.state)
    assert kinds(adoption) == ["omission"]


@pytest.mark.parametrize("front", [[], [system("New.")]])
def test_calls_in_another_order_are_not_left_out_by_their_numbers(front: list[Message]) -> None:
    state = state_of(user("Fix."), CALLED, result("c1", "Found."), result("c2", "Edited."), assistant("Done."))
    state = replace(state, omissions=Omissions(((2, 3),), {1: MessageOmissions(calls=frozenset({0}))}))
    history = client_of(state)
    changed = {**CALLED, "tool_calls": CALLED["tool_calls"][::-1]}
    adoption = adopt(state, [*front, history[0], changed, *history[2:], user("And?")])
    assert render(adoption.state)[len(front) + 1] == changed
    assert {"Found.", "Edited."} <= set(contents(adoption.state))
    assert kinds(adoption) == ["omission"]


def test_a_message_with_a_note_whose_calls_are_others_now_is_shown_and_told() -> None:
    noted = {3: MessageOmissions(True, True, frozenset({0}), notes=("[explored A: port 40]",))}
    state = evicted(user("Read."), entries=noted)
    state = replace(state, omissions=Omissions(((1, 5),), noted))
    history = client_of(state)
    history[3] = {**assistant("The other one."), "tool_calls": [tool_call("read", "c2")]}
    noted_state = replace(adopt(SessionState(digest_key=KEY), history).state, omissions=state.omissions)
    changed = {**history[3], "tool_calls": [tool_call("write", "c2", path="b")]}
    adoption = adopt(noted_state, [system("New."), *history[:3], changed, *history[4:]])
    assert changed in render(adoption.state)
    assert OTHER in contents(adoption.state)
    assert kinds(adoption) == ["omission"]


def test_a_summary_never_goes_to_what_a_closed_branch_holds() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [tool_call("weather", "w1")]}
    state = answered(opened_in(state_of(user("Find it."))), asked)
    state = adopt(state, [user("Find it."), asked, result("w1", "Rain.")]).state
    state = answered(returned(state), assistant("It is port 8000."))
    found = {**assistant("Now the host."), "tool_calls": [tool_call("host", "h1")]}
    more = [user("And the host?"), found, result("h1", "a"), assistant("Done."), user("Go on.")]
    state = adopt(state, [*client_of(state), *more]).state
    at = next(n for n, entry in enumerate(state.entries) if entry.message == found)
    kept = MessageOmissions(True, True, frozenset({0}), summary="The port is 8000.")
    state = replace(state, omissions=Omissions(((1, at - 1), (at, at + 2)), {at: kept}))
    state.check_integrity()
    history = client_of(state)
    adoption = adopt(state, [*history[:3], *history[4:5], *history[7:]])
    adoption.state.check_integrity()
    assert len(adoption.state.branches) == 1
    assert contents(adoption.state) == ["Find it.", "The port is 8000.", "And the host?", "Done.", "Go on."]
