"""Texts in the arguments of calls: found by path however the JSON is spelled, and exchanged without another change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.transcript.call_arguments import (
    ArgumentPart,
    Path,
    argument_at,
    argument_texts,
    part_name,
    unescaped,
    with_arguments,
    without_arguments,
)
from acmserve.context.transcript.message import Place

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SIGNS = st.sampled_from(['"', "\\", "\n", "\x00", "{", "}", "[", "]", ",", ":", "\U0001f600", "\\u0041", "/"])
STRINGS = TEXTS | st.lists(SIGNS, max_size=6).map("".join)
VALUES = st.recursive(
    STRINGS | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([None, True, False]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(STRINGS, VALUES, max_size=4)


def message_with(*arguments: object) -> dict[str, Any]:
    calls = [{"id": f"c{n}", "function": {"name": "write", "arguments": given}} for n, given in enumerate(arguments)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def strings_in(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The strings of a JSON value, found by another walk than that of the product."""
    if isinstance(value, str):
        yield path, value
    for step, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from strings_in(item, (*path, step))


@given(given=OBJECTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 3]), new=STRINGS, data=st.data())
def test_a_string_is_exchanged_and_nothing_else(
    given: dict[str, Any], ascii_only: bool, indent: int | None, new: str, data: st.DataObject
) -> None:
    raw = json.dumps(given, ensure_ascii=ascii_only, indent=indent)
    expected = {path: text for path, text in strings_in(given) if text}
    message = message_with(raw, given)
    for number in (0, 1):
        assert {part.path: text for part, text in argument_texts(message) if part.call == number} == expected
    parts = [part for part, _ in argument_texts(message)]
    assert [Place(0, part) for part in parts] == sorted(Place(0, part) for part in parts)
    if not parts:
        return
    part = data.draw(st.sampled_from(parts), "part")
    assert argument_at(message, part) == expected[part.path]
    changed = message_with(*(call["function"]["arguments"] for call in with_arguments(message, {part: new})))
    spelled, read = (call["function"]["arguments"] for call in changed["tool_calls"])
    now = json.loads(spelled) if part.call == 0 else read
    assert dict(strings_in(now)) == dict(strings_in(given)) | {part.path: new}
    back = with_arguments(changed, {part: expected[part.path]})[part.call]["function"]["arguments"]
    assert (json.loads(back) if part.call == 0 else back) == given
    assert (read if part.call == 0 else spelled) == (given if part.call == 0 else raw)


def test_numbers_spaces_and_escapes_of_the_rest_stay() -> None:
    raw = '{ "n":1.50e+400 , "a":"\\u00e9\\/", "text" : "old", "big": 12345678901234567890.0 }'
    [call] = with_arguments(message_with(raw), {ArgumentPart(0, ("text",)): 'new "é"'})
    assert call["function"]["arguments"] == raw.replace('"old"', '"new \\"é\\""')


@pytest.mark.parametrize(
    "raw", ['{"a": "x", "a": "y"}', '{"a": {"b": 1, "b": 2}}', '["x"]', '"x"', '{"a": "x"', "{'a': 1}", '{"a": NaN}']
)
def test_what_is_no_object_is_one_text_that_cannot_be_exchanged(raw: str) -> None:
    message = message_with(raw)
    assert argument_texts(message) == [(ArgumentPart(0), raw)]
    assert part_name(message, ArgumentPart(0)) == "arguments of write"
    [emptied] = without_arguments(message, [0])
    assert emptied["function"] == {"name": "write", "arguments": "{}"}


def test_deep_nesting_and_half_characters_are_no_texts() -> None:
    deep = '{"a":' * 100_000
    assert argument_texts(message_with(deep)) == [(ArgumentPart(0), deep)]
    assert argument_texts(message_with('{"a": "\\ud800", "b": "ok"}')) == [(ArgumentPart(0, ("b",)), "ok")]
    assert argument_texts(message_with(None, 7, [])) == []


@pytest.mark.parametrize("calls", [None, 3, {}, [None], [{"function": "x"}], [{"function": {"arguments": 1}}]])
def test_calls_of_any_form_have_no_texts(calls: object) -> None:
    message: Mapping[str, Any] = {"role": "assistant", "tool_calls": calls}
    assert argument_texts(message) == []
    assert argument_at(message, ArgumentPart(0, ("a",))) == ""


@given(STRINGS)
def test_escapes_are_read_wherever_they_stand(text: str) -> None:
    assert unescaped(json.dumps(text)) == unescaped(json.dumps(text, ensure_ascii=False)) == f'"{text}"'


def test_a_place_has_a_name() -> None:
    message = message_with(json.dumps({"edits": [{"new\n" + "x" * 90: "text"}]}))
    [(part, _)] = argument_texts(message)
    assert part_name(message, part).startswith("argument edits.0.new xxxx")
    assert part_name(message, part).endswith("... of write")
