"""A client that leaves its history to the session: what is sent goes behind the answer that is named."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.session.going_on import END, RESPONSE_ID, go_on
from acmserve.context.session.history import adopt, append_answer, append_internal, end_turn
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.errors import NotFound
from tests.support.context.maps import WordTokenizer

SYSTEM = {"role": "system", "content": "You help."}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answered(state: SessionState, text: str, response_id: str) -> SessionState:
    return end_turn(append_answer(state, {"role": "assistant", "content": text, RESPONSE_ID: response_id}))


def texts(state: SessionState) -> list[str]:
    return [message["content"] for message in render(state)]


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
