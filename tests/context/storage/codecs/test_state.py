"""States become JSON and come back equal, damage is named, and a save plans only the rows that changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact, summarize
from acmserve.context.session.history import adopt, append_answer
from acmserve.context.session.rollout.lines import rollout_rows, row_value
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.storage.codecs.rows import entry_value, fragment_value, limit_values, pack, plan_change, unpack
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.errors import AcmError, InvalidRequest
from tests.support.context.conversation import Characters
from tests.support.context.states import JSON, TEXTS, chat, conversation, session_states


@given(session_states())
def test_a_state_comes_back_equal(state: SessionState) -> None:
    back = state_from(unpack(pack(state_value(state))), "session 'a'")
    assert back == state
    assert back.digest_key == state.digest_key
    assert [list(entry.message.items()) for entry in back.entries] == [
        list(entry.message.items()) for entry in state.entries
    ]


@given(session_states())
def test_a_state_is_plain_json(state: SessionState) -> None:
    assert (
        state_from(json.loads(json.dumps(state_value(state))), "a").fragments
        == state_from(state_value(state), "a").fragments
    )


@given(JSON)
def test_a_row_comes_back_equal(value: Any) -> None:
    back = unpack(pack(value))
    assert back == value
    assert repr(back) == repr(value)


def test_a_redacted_text_takes_no_more_bytes_than_it_had() -> None:
    assert len(pack("\x00" * 1000)) == len(pack("a" * 1000)) == 1002


def test_a_message_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="messages: cannot be stored as JSON"):
        pack(entry_value(TranscriptEntry({"role": "user", "content": {1, 2}}, Author.CLIENT)))


FREE = ("message", "arguments")
"""Objects that may hold anything."""


@given(session_states(), st.data())
def test_damage_is_named_and_never_read_as_something_else(state: SessionState, data: st.DataObject) -> None:
    """Whatever one value of the JSON is exchanged for: an equal type may pass, anything else is an `AcmError`."""
    value = json.loads(json.dumps(state_value(state)))
    target: Any = value
    while True:
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        if key in FREE or not isinstance(target[key], dict | list) or not target[key]:
            break
        target = target[key]
    target[key] = {"strange": [1.5]} if key not in FREE else 7
    with pytest.raises(AcmError, match=r"sessions\.sqlite3 is damaged: .* Restore it from a backup"):
        state_from(value, "Session 'a' in sessions.sqlite3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 5}, "version 5, this acmserve reads version 4"),
        ({"version": True}, "version is bool, not int"),
        ({"digest_key": ""}, "digest_key has 0 bytes"),
        ({"digest_key": "xx"}, "non-hexadecimal"),
        ({"entries": {}}, "entries is dict, not list"),
        ({"num_ids": "1"}, "num_ids is str, not int"),
        ({"num_ids": 2**63}, "num_ids is an integer of 64 bits, 64 are the most"),
        ({"num_turns": 2**70}, "num_turns is an integer of 71 bits"),
        ({"num_turns": -1}, "num_turns is -1"),
        ({"limits": [{"omissions": {"gone": [], "entries": {"0": {"calls": [2**63]}}}, "budget": None}]}, "64 bits"),
        ({"fragments": [{"redacted": ["f1", "user", 2**64, 1, "A" * 21 + "A=="]}]}, "num_tokens of a redacted text"),
        ({"fragments": [{"redacted": ["f1", "user", 9, 2**50, "A" * 87382 + "=="]}]}, "for 1125899906842624 redacted"),
        ({"hits": [["s00000", 5, None, 0, 1]]}, "in a text of -1 characters"),
        ({"hits": [["s00000", -1, None, 0, 1]]}, "in a text of -1 characters"),
        ({"hits": [["s00000", 0]]}, "not enough values"),
        ({"hits": [["s00000", 0, [], 0, 1]]}, "part is list, not int or NoneType"),
        ({"hits": [["s00000", 0, [0, None], 0, 1]]}, "step is NoneType, not str or int"),
        ({"hits": [["s00000", 0, [-1, "a"], 0, 1]]}, "in a text of 0 characters"),
    ],
)
def test_a_damaged_value_says_what_is_wrong(change: dict[str, Any], words: str) -> None:
    value = state_value(conversation(["one", "two"])) | change
    with pytest.raises(AcmError, match=words) as raised:
        state_from(value, "Session 'a' in sessions.sqlite3")
    assert str(raised.value).startswith("Session 'a' in sessions.sqlite3")


def test_a_missing_field_and_a_fragment_outside_of_its_text_are_damage() -> None:
    value = state_value(conversation(["one"]))
    del value["num_turns"]
    with pytest.raises(AcmError, match="'num_turns' is missing"):
        state_from(value, "a")
    cut = cut_messages(conversation(["one"]), 0, 1, Characters()).state
    value = state_value(cut)
    value["fragments"][0]["pieces"][0][3] = 99
    with pytest.raises(AcmError, match="in a text of 3 characters"):
        state_from(value, "a")
    with pytest.raises(ValueError, match="Expecting property name"):
        unpack(b"{")
    with pytest.raises(TypeError, match="a row holds str, not bytes"):
        unpack("{}")


@given(session_states(), session_states())
def test_a_change_leads_from_any_state_to_any_other(old: SessionState, new: SessionState) -> None:
    change = plan_change(old, new)
    for rows, before, after in (
        (change.entries, [pack(entry_value(e)) for e in old.entries], [pack(entry_value(e)) for e in new.entries]),
        (
            change.fragments,
            [pack(fragment_value(f)) for f in (*old.redacted, *old.fragments)],
            [pack(fragment_value(f)) for f in (*new.redacted, *new.fragments)],
        ),
        (change.limits, [pack(v) for v in limit_values(old)], [pack(v) for v in limit_values(new)]),
        (
            change.rollout,
            [pack(row_value(row)) for row in rollout_rows(old.rollout)],
            [pack(row_value(row)) for row in rollout_rows(new.rollout)],
        ),
    ):
        if rows is None:
            assert before == after
            continue
        table = dict(enumerate(before)) | dict(rows.rows)
        rebuilt = [table[position] for position in range(rows.num_rows)]
        assert [unpack(row) for row in rebuilt] == [unpack(row) for row in after]
        assert rows.sizes([len(row) for row in before]) == tuple(len(row) for row in rebuilt)
    assert (change.hits is None) == (old.hits == new.hits)


def test_a_turn_changes_only_the_rows_that_it_appends() -> None:
    history = chat(*(f"message {number}" for number in range(1000)))
    old = adopt(SessionState(), history).state
    resent = json.loads(json.dumps([*history, {"role": "user", "content": "and now?"}]))
    new = append_answer(adopt(old, resent).state, {"role": "assistant", "content": "yes"})
    change = plan_change(old, new)
    assert sorted(change.entries.rows) == [1000, 1001]
    assert change.fragments.rows == {}
    assert change.hits is None
    assert not change.removes_text


def test_a_message_in_other_words_of_the_protocol_removes_no_text() -> None:
    old = adopt(SessionState(), [{"role": "assistant", "content": "hello"}]).state
    new = adopt(old, [{"role": "assistant", "content": "hello", "tool_calls": None}]).state
    change = plan_change(old, new)
    assert sorted(change.entries.rows) == [0]
    assert not change.removes_text


def test_arguments_that_are_spelled_anew_remove_no_text() -> None:
    told, anew = (
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "write", "arguments": arguments}}]}
        for arguments in ('{"text": "hello"}', '{"text":"hello"}')
    )
    old = adopt(SessionState(), [told]).state
    change = plan_change(old, adopt(old, [anew]).state)
    assert sorted(change.entries.rows) == [0]
    assert not change.removes_text


@pytest.mark.parametrize("field", ["result", "call"])
def test_other_ids_of_calls_in_redacted_messages_remove_no_text(field: str) -> None:
    def told(call_id: str, query: str = "a harbour") -> list[Any]:
        function = {"name": "read", "arguments": json.dumps({"q": query})}
        call = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": call_id, "function": function}]}
        return [call, {"role": "tool", "tool_call_id": call_id, "content": "an open harbour"}]

    at = 0 if field == "call" else 1
    cut = cut_messages(adopt(SessionState(), told("c1")).state, at, at + 1, Characters()).state
    old = redact(cut, cut.fragments[0].fragment_id)
    new = adopt(old, told("c2")).state
    assert new.entries[at].sealed
    assert new.entries[at].message != old.entries[at].message
    assert not plan_change(old, new).removes_text
    emptied = replace(new.entries[0], message={**told("c2", "")[0], "content": old.entries[0].message["content"]})
    emptied = replace(emptied, sealed=True)
    assert plan_change(old, replace(new, entries=(emptied, *new.entries[1:]))).removes_text


@given(TEXTS.filter(bool))
def test_text_that_is_gone_is_noticed(text: str) -> None:
    old = conversation(["first", text])
    cut = cut_messages(old, 1, 2, Characters()).state
    fragment_id = cut.fragments[0].fragment_id
    assert not plan_change(old, cut).removes_text
    assert plan_change(old, replace(old, entries=old.entries[:1])).removes_text
    assert plan_change(cut, redact(cut, fragment_id)).removes_text == (set(text) != {"\x00"})


def test_a_summary_that_is_gone_is_noticed() -> None:
    state = cut_messages(conversation(["a long text " * 40]), 0, 1, Characters()).state
    fragment_id = state.fragments[0].fragment_id
    short = summarize(state, fragment_id, "names", "Ada", "sculptor", Characters())

    assert not plan_change(state, short).removes_text
    assert plan_change(short, replace(short, fragments=())).removes_text
