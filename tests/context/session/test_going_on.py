"""A client that leaves its history to the session: what is sent goes behind the answer that is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import fold, redact
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.carrying.record import REMOVED, DroppedEdit
from acmserve.context.session.going_on import END, RESPONSE_ID, go_on
from acmserve.context.session.history import INTERRUPTED_NOW, adopt, append_answer, append_internal, end_turn
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.transcript.observations import ObservationRule
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.errors import NotFound
from tests.support.context.branching import opened_in, step, worked
from tests.support.context.maps import WordTokenizer

SYSTEM = {"role": "system", "content": "You help."}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answered(state: SessionState, text: str, response_id: str) -> SessionState:
    return end_turn(append_answer(state, {"role": "assistant", "content": text, RESPONSE_ID: response_id}))


def texts(state: SessionState) -> list[str]:
    return [message["content"] for message in render(state)]


def cut_at(state: SessionState, number: int) -> tuple[SessionState, str]:
    """The state with a fragment that is a whole message, and its id."""
    cut = cut_messages(state, number, number + 1, WordTokenizer())
    return cut.state, cut.fragments[0].fragment_id


def folded(state: SessionState, number: int) -> tuple[SessionState, str]:
    cut, name = cut_at(state, number)
    return fold(cut, name, "sculptor", WordTokenizer()), name


def redacted(state: SessionState, number: int) -> tuple[SessionState, str]:
    cut, name = cut_at(state, number)
    return redact(cut, name), name


@pytest.fixture
def state() -> SessionState:
    state = answered(adopt(SessionState(), [SYSTEM, said("a")]).state, "b", "r1")
    return answered(go_on(state, "r1", [SYSTEM, said("c")]).state, "d", "r2")


def test_what_is_sent_goes_behind_the_answer(state: SessionState) -> None:
    assert texts(state) == ["You help.", "a", "b", "c", "d"]
    adoption = go_on(state, "r2", [SYSTEM, said("e")])
    assert texts(adoption.state) == ["You help.", "a", "b", "c", "d", "e"]
    assert adoption.num_known == 5
    assert go_on(state, END, [SYSTEM, said("e")]).state.entries == adoption.state.entries
    adoption.state.check_integrity()


def test_an_earlier_answer_cuts_off_what_came_later(state: SessionState) -> None:
    assert texts(go_on(state, "r1", [SYSTEM, said("x")]).state) == ["You help.", "a", "b", "x"]


def test_internal_entries_of_the_turn_stay(state: SessionState) -> None:
    called = append_internal(go_on(state, "r2", [SYSTEM, said("e")]).state, [{"role": "tool", "content": "t"}])
    later = answered(called, "f", "r3")
    assert texts(go_on(later, "r3", [SYSTEM, said("g")]).state)[-4:] == ["e", "t", "f", "g"]


def test_instructions_are_those_of_the_request(state: SessionState) -> None:
    other = {"role": "system", "content": "You sing."}
    assert texts(go_on(state, "r2", [other, said("e")]).state) == ["You sing.", "a", "b", "c", "d", "e"]
    assert texts(go_on(state, "r2", [said("e")]).state) == ["a", "b", "c", "d", "e"]
    bare = answered(adopt(SessionState(), [said("a")]).state, "b", "r1")
    assert texts(go_on(bare, "r1", [SYSTEM, said("c")]).state) == ["You help.", "a", "b", "c"]
    joined = {"role": "system", "content": "You help.\n\nBe kind."}
    long = answered(adopt(SessionState(), [joined, said("a")]).state, "b", "r1")
    assert texts(go_on(long, "r1", [SYSTEM, said("c")]).state)[0] == "You help.\n\nBe kind."


@pytest.mark.parametrize("redacted", [1, 2], ids=["user", "answer"])
@pytest.mark.parametrize("instructions", [[], [SYSTEM]], ids=["left out", "added"])
def test_a_redaction_stays_where_instructions_come_or_go(instructions: list[Any], redacted: int) -> None:
    secret, other = "The number of the safe is 73519.", [said("What is it?")]
    words = [secret, "Noted."] if redacted == 1 else ["And the safe?", secret]
    head = [] if instructions else [SYSTEM]
    state = answered(adopt(SessionState(), [*head, said(words[0])]).state, words[1], "r1")
    number = len(head) + redacted - 1
    cut = cut_messages(state, number, number + 1, WordTokenizer())
    state = redact(cut.state, cut.fragments[0].fragment_id)
    adoption = go_on(state, "r1", [*instructions, *other])
    assert adoption.dropped == ()
    assert adoption.num_known == 2
    kept = texts(state)[len(head) :]
    assert texts(adoption.state) == [*(message["content"] for message in instructions), *kept, "What is it?"]
    adoption.state.check_integrity()
    later = answered(adoption.state, "I do not know.", "r2")
    assert texts(go_on(later, "r1", [*instructions, said(f"Again: {secret}")]).state)[:-1] == texts(adoption.state)[:-1]
    sent = [*instructions, said(words[0]), {"role": "assistant", "content": words[1]}, *other]
    assert texts(adopt(adoption.state, sent).state) == texts(adoption.state)


LONG = "Rules: " + "one two three four five " * 30


@pytest.mark.parametrize("edit", [folded, redacted])
@pytest.mark.parametrize("words", ["You sing now.", "New rules: " + "obey them " * 90], ids=["shorter", "longer"])
def test_other_instructions_are_served_without_the_edits_of_the_old_ones(edit: Any, words: str) -> None:
    began = answered(adopt(SessionState(), [{"role": "system", "content": LONG}, said("a")]).state, "b", "r1")
    state, name = edit(began, 0)
    adoption = go_on(state, "r1", [{"role": "system", "content": words}, said("c")])
    assert texts(adoption.state) == [words, "a", "b", "c"]
    assert [dropped.edit_id for dropped in adoption.dropped] == [name]
    adoption.state.check_integrity()
    assert state_from(state_value(adoption.state), "it") == adoption.state


@pytest.mark.parametrize("number", [0, 1])
def test_edits_stay_where_instructions_have_other_words(number: int) -> None:
    sent = [{"role": "system", "content": LONG}, said(LONG)]
    state, name = folded(answered(adopt(SessionState(), sent).state, "b", "r1"), number)
    adoption = go_on(state, "r1", [{"role": "system", "content": f"It is noon. {LONG}"}, said("c")])
    assert adoption.dropped == ()
    assert adoption.state.fragment(name).hidden
    assert texts(adoption.state)[0].startswith("It is noon. ")
    adoption.state.check_integrity()


def test_redacted_instructions_come_back_in_no_words() -> None:
    secret = "The number of the safe is 73519. "
    sent = {"role": "system", "content": secret * 3}
    state, _ = redacted(answered(adopt(SessionState(), [sent, said("a")]).state, "b", "r1"), 0)
    same = go_on(state, "r1", [sent, said("c")])
    assert (texts(same.state)[0], same.dropped) == (texts(state)[0], ())
    for text in (f"Be kind. {secret * 3}", f"{secret}Sing."):
        other = go_on(state, "r1", [{"role": "system", "content": text}, said("c")])
        assert "73519" not in repr(other.state)
        assert "[redacted" in texts(other.state)[0]
        other.state.check_integrity()
        assert "73519" not in repr(go_on(answered(other.state, "d", "r2"), "r2", [sent, said("e")]).state)


def test_what_is_cut_off_behind_an_earlier_answer_is_told(state: SessionState) -> None:
    state = go_on(state, "r1", [SYSTEM, said(LONG)]).state
    state = answered(state, "d", "r2")
    for edit, kind in ((folded, "fragment"), (redacted, "redaction")):
        edited, name = edit(state, 3)
        assert go_on(edited, "r1", [SYSTEM, said("x")]).dropped == (DroppedEdit(kind, name, REMOVED),)
        assert go_on(edited, "r2", [SYSTEM, said("x")]).dropped == ()
        assert go_on(edited, END, [SYSTEM, said("x")]).dropped == ()
    state = answered(go_on(state, "r2", [SYSTEM, said("e")]).state, "f", "r3")
    left_out = Omissions(((2, 3), (4, 5)), {4: MessageOmissions(True, True, summary="S")})
    state = replace(state, omissions=left_out)
    assert go_on(state, "r3", [SYSTEM, said("x")]).dropped == ()
    sent = [*(entry.message for entry in state.entries[:5]), said("x")]
    told = go_on(state, "r2", [SYSTEM, said("x")]).dropped
    assert told == adopt(state, sent).dropped
    assert [edit.kind for edit in told] == ["omission"]


def test_branches_that_end_or_are_cut_off_are_told(state: SessionState) -> None:
    opened = opened_in(state, "b1")
    asked = answered(worked(opened, step()), "Which one?", "r3")
    interrupted = go_on(asked, "r3", [SYSTEM, said("That one.")])
    assert interrupted.dropped == (DroppedEdit("branch", "b1", INTERRUPTED_NOW),)
    assert interrupted.state.branch is None
    assert go_on(asked, "r2", [SYSTEM, said("x")]).dropped == (DroppedEdit("branch", "b1", REMOVED),)


def test_observations_are_found_as_in_a_history() -> None:
    state = answered(adopt(SessionState(), [said("Fix it.")]).state, "I look. ```bash\nls\n```", "r1")
    output, off = said("<output>a.py</output>"), ObservationRule("off")
    assert go_on(state, "r1", [output]).state.observations == {2}
    assert go_on(state, "r1", [SYSTEM, output]).state.observations == {3}
    assert go_on(state, "r1", [output], off).state.observations == frozenset()
    assert go_on(replace(state, observation_rule=off), "r1", [output]).state.observations == frozenset()
    assert (
        go_on(state, "r1", [said("x"), {"role": "assistant", "content": "```ls```"}, output], off).state.observations
        == set()
    )


def test_a_branch_of_a_session_has_instructions_of_its_own(state: SessionState) -> None:
    branch = replace(state, parent=Parent("p", "m", "d", "q", 5, 5))
    for head in ([SYSTEM], [{"role": "system", "content": "You sing."}], []):
        assert go_on(branch, "r2", [*head, said("e")]).num_of_parent == 5


def test_a_session_that_is_new_begins() -> None:
    assert texts(go_on(SessionState(), END, [SYSTEM, said("a")]).state) == ["You help.", "a"]


@pytest.mark.parametrize("response_id", ["", "r3", "x" * 5000, "\ud800"])
def test_an_unknown_answer_is_named(state: SessionState, response_id: str) -> None:
    with pytest.raises(NotFound) as refused:
        go_on(state, response_id, [said("e")])
    assert refused.value.field == "previous_response_id"
    assert "whole history" in refused.value.remedy


def test_the_clients_own_history_is_recognised_after_it(state: SessionState) -> None:
    history = [
        SYSTEM,
        said("a"),
        {"role": "assistant", "content": "b"},
        said("c"),
        {"role": "assistant", "content": "d"},
    ]
    assert adopt(state, [*history, said("e")]).num_known == 5
