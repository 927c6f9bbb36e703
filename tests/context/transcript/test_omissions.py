"""What a shed conversation looks like: one example for each thing taken out, and that no data can break a rendering."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.storage.codecs.omissions import omissions_from, omissions_value
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import (
    EMPTY,
    NOTHING,
    PLACEHOLDER,
    MessageOmissions,
    Omissions,
    omit_from_message,
    render_without,
)
from acmserve.context.transcript.omitted_tokens import shown_tokens
from acmserve.context.transcript.outline import Outline, Use
from acmserve.errors import IntegrityError
from tests.support.context.annotated import Story, histories, token_counts_of
from tests.support.context.valid_chat import check_valid, orphans, weigh


def two_calls() -> list[Message]:
    story = Story().step(("grep", "many hits"), ("edit", "ok"), text="Both .", reasoning="Why not .")
    return story.user().messages


def editor_of(messages: list[Message], omissions: Omissions = EMPTY) -> OmissionEditor:
    return OmissionEditor(Outline(messages), token_counts_of(messages), omissions)


def test_nothing_shed_is_the_very_same() -> None:
    messages = two_calls()
    assert all(a is b for a, b in zip(render_without(messages, EMPTY), messages, strict=True))


def test_reasoning_goes_and_the_rest_stays() -> None:
    messages = two_calls()
    editor = editor_of(messages)
    editor.strip_reasoning(2)
    rendered = render_without(messages, editor.omissions())
    expected = {name: value for name, value in messages[2].items() if name != "reasoning_content"}
    assert rendered[2] == expected
    assert rendered[3] is messages[3]
    assert editor.num_tokens == weigh(rendered)


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ({"role": "assistant", "content": "a", "reasoning": "r"}, {"role": "assistant", "content": "a"}),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        ),
        ({"role": "assistant", "content": None, "reasoning_content": "r"}, None),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, None),
    ],
)
def test_reasoning_wherever_clients_put_it(message: dict[str, Any], left: dict[str, Any] | None) -> None:
    assert omit_from_message(message, MessageOmissions(reasoning=True)) == left


def test_a_call_goes_with_its_result() -> None:
    messages = two_calls()
    editor = editor_of(messages)
    editor.drop_call(Use(2, 0))
    rendered = render_without(messages, editor.omissions())
    assert [call["function"]["name"] for call in rendered[2]["tool_calls"]] == ["edit"]
    assert rendered[3:] == messages[4:]
    editor.drop_call(Use(2, 1))
    rendered = render_without(messages, editor.omissions())
    assert rendered[2] == {"role": "assistant", "content": "Both .", "reasoning_content": "Why not ."}
    editor.drop_text(2)
    assert render_without(messages, editor.omissions()) == [*messages[:2], messages[-1]]
    assert editor.num_uses == 2


def test_a_message_that_says_and_calls_nothing_is_left_out() -> None:
    messages = Story().step(("grep", "x"), text=" \n", reasoning="Hm .").user().messages
    editor = editor_of(messages)
    editor.drop_call(Use(2, 0))
    assert render_without(messages, editor.omissions()) == [*messages[:2], messages[-1]]


def test_a_cleared_result_is_a_placeholder() -> None:
    messages = two_calls()
    editor = editor_of(messages)
    editor.clear_result(Use(2, 0), inputs=True)
    editor.clear_result(Use(2, 1), inputs=False)
    rendered = render_without(messages, editor.omissions())
    assert [message["content"] for message in rendered[3:5]] == [PLACEHOLDER, PLACEHOLDER]
    assert [call["function"]["arguments"] for call in rendered[2]["tool_calls"]] == ["{}", '{"path": "a b c"}']
    assert [message["tool_call_id"] for message in rendered[3:5]] == ["call_1", "call_2"]
    assert editor.num_tokens == weigh(rendered)


def test_a_note_stands_behind_what_is_left() -> None:
    message = {"role": "assistant", "content": "Text .", "tool_calls": two_calls()[2]["tool_calls"]}
    noted = omit_from_message(message, MessageOmissions(calls=frozenset({0, 1}), notes=("[a]", "[b]")))
    assert noted == {"role": "assistant", "content": "Text .\n[a]\n[b]"}
    parts = {"role": "assistant", "content": [{"type": "text", "text": "Text ."}]}
    assert omit_from_message(parts, MessageOmissions(notes=("[a]",))) == {
        "role": "assistant",
        "content": [{"type": "text", "text": "Text ."}, {"type": "text", "text": "[a]"}],
    }


def test_a_result_that_came_late_goes_with_its_call() -> None:
    messages = two_calls()
    editor = editor_of(messages[:4])
    editor.drop_call(Use(2, 0))
    editor.drop_call(Use(2, 1))
    assert orphans(render_without(messages, editor.omissions())) == []


@pytest.mark.parametrize(
    "omissions",
    [
        Omissions(gone=((3, 3),)),
        Omissions(gone=((1, 3), (3, 4))),
        Omissions(gone=((5, 6), (1, 2))),
        Omissions(entries={1: MessageOmissions()}),
        Omissions(entries={-1: MessageOmissions(text=True)}),
    ],
)
def test_bad_data_is_found(omissions: Omissions) -> None:
    with pytest.raises(IntegrityError):
        omissions.check_integrity()


_message_omissions = st.builds(
    MessageOmissions,
    reasoning=st.booleans(),
    text=st.booleans(),
    calls=st.frozensets(st.integers(0, 3)),
    cleared=st.frozensets(st.integers(0, 3)),
    inputs=st.frozensets(st.integers(0, 3)),
    notes=st.lists(st.just("[note]"), max_size=2).map(tuple),
)


@st.composite
def _any_omissions(draw: st.DrawFn) -> Omissions:
    marks = sorted(draw(st.sets(st.integers(0, 40), max_size=6)))
    gone = tuple(zip(marks[::2], marks[1::2], strict=False))
    return Omissions(gone, draw(st.dictionaries(st.integers(0, 40), _message_omissions, max_size=6)))


@given(histories(), _any_omissions(), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_whatever_the_data_says_the_conversation_is_valid(
    messages: list[Message], omissions: Omissions, limit: int
) -> None:
    """A message of a user goes where its own entry says so. Nothing else takes one, and the system's always stay."""
    rendered = render_without(messages, omissions)
    taken = [m for at, m in enumerate(messages) if m["role"] == "user" and omissions.entries.get(at, NOTHING).text]
    own = [m for m in rendered if m["role"] != "user" or any(m is other for other in messages)]
    check_valid([m for m in messages if not any(m is other for other in taken)], own)
    assert render_without(messages, omissions) == rendered
    assert render_without(messages[:limit], omissions.first(limit)) == render_without(messages[:limit], omissions)


@given(_any_omissions())
@settings(max_examples=50)
def test_it_survives_json(omissions: Omissions) -> None:
    omissions = Omissions(
        tuple(r for r in omissions.gone if r[0] < r[1]),
        {e: s for e, s in omissions.entries.items() if s != MessageOmissions()},
    )
    assert omissions_from(json.loads(json.dumps(omissions_value(omissions)))) == omissions


@pytest.mark.parametrize(
    "value",
    [
        {"gone": [[1, True]], "entries": {}},
        {"gone": {}, "entries": {}},
        {"gone": [], "entries": {"1": {"text": False}}},
        {"gone": [], "entries": {"1": {"colour": True}}},
        {"gone": [], "entries": {"x": {}}},
        {"gone": [], "entries": {"1": {"notes": [1]}}},
    ],
)
def test_a_damaged_value_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        omissions_from(value)


@given(histories(), st.data())
@settings(max_examples=100, deadline=None)
def test_the_editor_counts_what_the_rendering_shows(messages: list[Message], data: st.DataObject) -> None:
    """Any operations, in any order, some of them in a second editor on the shed of the first."""
    outline, token_counts = Outline(messages), token_counts_of(messages)
    uses = [*outline.uses(), *outline.uses()]
    spoken = [entry for entry, message in enumerate(messages) if message["role"] == "assistant"]
    omissions = EMPTY
    for _ in range(2):
        editor = OmissionEditor(outline, token_counts, omissions)
        for _ in range(data.draw(st.integers(0, 5)) if spoken else 0):
            kind = data.draw(st.sampled_from(["reasoning", "text", "call", "clear", "note"]))
            entry = data.draw(st.sampled_from(spoken))
            if kind == "reasoning":
                editor.strip_reasoning(entry)
            elif kind == "text":
                editor.drop_text(entry)
            elif kind == "note":
                editor.add_note(entry, "[a note of it]")
            elif uses:
                use = data.draw(st.sampled_from(uses))
                if kind == "call":
                    editor.drop_call(use)
                else:
                    editor.clear_result(use, inputs=data.draw(st.booleans()))
        omissions = editor.omissions()
        omissions.check_integrity()
        rendered = render_without(messages, omissions)
        check_valid(messages, rendered)
        assert editor.num_tokens == shown_tokens(outline, token_counts, omissions) == weigh(rendered)
