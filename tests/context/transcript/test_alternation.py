"""Seams of an eviction are mended for strict templates, and nothing else is touched."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.transcript.alternation import GO_ON, LEFT_OUT, alternate, alternate_entries
from acmserve.context.transcript.template_rules import STRICT, TAKES_ALL, TemplateRules
from tests.support.context.valid_chat import orphans

U1, U2 = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
SAID, DONE = {"role": "assistant", "content": "said"}, {"role": "assistant", "content": "done"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
NOTE = {"role": "assistant", "content": "[explored]"}


def test_users_are_merged_and_texts_of_the_assistant_too() -> None:
    assert alternate([U1, SAID, U2], [U1, None, U2], STRICT) == [{"role": "user", "content": "one\n\ntwo"}]
    assert alternate_entries([U1, SAID, DONE, U2], [U1, NOTE, DONE, U2], STRICT)[1] == [[0], [1, 2], [3]]
    left = alternate([U1, SAID, DONE], [U1, NOTE, DONE], STRICT)
    assert left == [U1, {"role": "assistant", "content": "[explored]\ndone"}]
    parts = [{"type": "text", "text": "two"}]
    merged = alternate([U1, SAID, U2], [U1, None, {**U2, "content": parts}], STRICT)
    assert merged[0]["content"] == [{"type": "text", "text": "one"}, *parts]


def test_a_text_before_a_call_is_merged_where_it_is_shown_and_bridged_where_not() -> None:
    whole = [U1, SAID, CALLING, RESULT]
    shown = alternate(whole, [U1, NOTE, CALLING, RESULT], TemplateRules(text_then_calls=False))
    assert shown == [U1, {**CALLING, "content": "[explored]"}, RESULT]
    hidden = alternate(whole, [U1, NOTE, CALLING, RESULT], STRICT)
    assert hidden == [U1, NOTE, {"role": "user", "content": GO_ON}, CALLING, RESULT]
    entries = alternate_entries(whole, [U1, NOTE, CALLING, RESULT], STRICT)[1]
    assert entries == [[0], [1], [], [2], [3]]


def test_a_user_behind_results_gets_an_answer_between() -> None:
    left = alternate([U1, CALLING, RESULT, DONE, U2], [U1, CALLING, RESULT, None, U2], STRICT)
    assert left == [U1, CALLING, RESULT, {"role": "assistant", "content": LEFT_OUT}, U2]


def test_a_note_in_a_message_that_calls_is_split_off_where_it_would_not_be_shown() -> None:
    cut = {**CALLING, "content": "[explored]"}
    assert alternate([U1, CALLING, RESULT], [U1, cut, RESULT], TemplateRules(calls_with_text=False)) == [
        U1,
        NOTE,
        {**CALLING, "content": ""},
        RESULT,
    ]


def test_reasoning_of_merged_messages_stays() -> None:
    first, second = {**NOTE, "reasoning": "a"}, {**DONE, "reasoning": "b"}
    [_, merged] = alternate([U1, SAID, DONE], [U1, first, second], STRICT)
    assert merged == {"role": "assistant", "content": "[explored]\ndone", "reasoning": "a\nb"}


def test_what_the_client_wrote_is_the_very_object_and_its_own_neighbours_stay() -> None:
    whole = [U1, U2, SAID, DONE, RESULT, U1]
    for rules in (STRICT, TAKES_ALL):
        left = alternate(whole, list(whole), rules)
        assert all(a is b for a, b in zip(left, whole, strict=True))


messages = st.lists(st.sampled_from([U1, SAID, CALLING]), min_size=1, max_size=12)


@settings(deadline=None)
@given(messages, st.data())
def test_a_strict_template_finds_no_neighbours_and_old_bytes_stay(drawn: list[Any], data: st.DataObject) -> None:
    """Valid histories: users and answers in turn, calls with their results. Anything but the users may go."""
    whole: list[Any] = []
    for number, message in enumerate(drawn):
        if whole and whole[-1]["role"] != "user":
            whole.append({"role": "user", "content": f"u{number}"})
        elif not whole:
            whole.append(U1)
        if message is CALLING:
            whole += [
                {**CALLING, "tool_calls": [{**CALL, "id": f"c{number}"}]},
                {**RESULT, "tool_call_id": f"c{number}"},
            ]
            whole.append(DONE)
        elif message is SAID:
            whole.append(SAID)
    if whole[-1]["role"] != "user":
        whole.append(U2)
    left: list[Any] = []
    for entry, message in enumerate(whole):
        gone = message["role"] == "assistant" and data.draw(st.booleans())
        if message["role"] == "tool":
            gone = left[-1] is None
        left.append(None if gone else message)
        if gone and message is SAID and data.draw(st.booleans()):
            left[entry] = NOTE
    mended = alternate(whole, left, STRICT)
    assert orphans(mended) == []
    spoken = [
        m["role"] for m in mended if m["role"] == "user" or (m["role"] == "assistant" and not m.get("tool_calls"))
    ]
    assert spoken == ["user", "assistant"] * (len(spoken) // 2) + ["user"] * (len(spoken) % 2)
    more = [*whole, DONE, {"role": "user", "content": "more"}]
    again = alternate(more, [*left, DONE, more[-1]], STRICT)
    assert again[: len(mended)] == mended
    assert all(part["content"] in str(mended) for part in left if part is not None and part["role"] == "user")


def test_the_parts_of_a_message_that_is_split_are_not_compared_with_each_other() -> None:
    """There may be thousands. Comparisons are counted."""
    num_compared = 0

    class Counted(dict[str, str]):  # noqa: PLW1641
        def __eq__(self, other: object) -> bool:
            nonlocal num_compared
            num_compared += 1
            return super().__eq__(other)

    parts = [Counted(type="text", text=f"part {number}") for number in range(50)]
    note = {"type": "text", "text": "[explored]"}
    said = {**CALLING, "content": parts}
    left = alternate([U1, said, RESULT], [U1, {**said, "content": [*parts, note]}, RESULT], STRICT)
    assert [message["content"] for message in left[1:3]] == [[note], GO_ON]
    assert left[3]["content"] == parts
    assert num_compared <= 3 * len(parts)
