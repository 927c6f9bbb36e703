"""The delimiter tool: the four canonical calls, what it refuses, and that a wrong call changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from acmserve.context.episodes.delimiter import (
    DELIMITER_TOOL,
    MAX_DESCRIPTION_CHARS,
    Scope,
    is_refusal,
    read_mark,
    run_delimiter,
)
from acmserve.context.episodes.episode import Kind
from acmserve.context.tools.suites import PRESETS
from acmserve.errors import InvalidRequest

START_EXPL = {"action": "start", "name": "find", "type": "expl"}
END_EXPL = {"action": "end", "description": "it is in a.py"}
START_ACT = {"action": "start", "name": "fix", "type": "act", "dependencies": ["find"]}
END_ACT = {"action": "end"}
FOUND = Scope({"find": Kind.EXPL})


def test_the_schema_is_that_of_section_4_2() -> None:
    parameters = DELIMITER_TOOL["function"]["parameters"]
    assert list(parameters["properties"]) == ["action", "name", "type", "dependencies", "description"]
    assert parameters["required"] == ["action"]
    assert parameters["properties"]["action"]["enum"] == ["start", "end"]
    assert parameters["properties"]["type"]["enum"] == ["expl", "act"]
    assert parameters["additionalProperties"] is False
    Draft202012Validator.check_schema(parameters)
    for arguments in (START_EXPL, END_EXPL, START_ACT, END_ACT):
        assert Draft202012Validator(parameters).is_valid(arguments)


def test_the_four_canonical_calls() -> None:
    scope = Scope()
    told = []
    for arguments in (START_EXPL, END_EXPL, START_ACT, END_ACT):
        marked = run_delimiter(scope, json.dumps(arguments))
        assert marked.error is None
        assert marked.scope != scope
        scope = marked.scope
        told.append(marked.result)
    assert scope == Scope({"find": Kind.EXPL, "fix": Kind.ACT})
    assert told == [
        "Started expl find. End it with a description of what you learned.",
        "Ended expl find. An act may now depend on it.",
        "Started act fix, which uses find. End it without a description.",
        "Ended act fix.",
    ]


@pytest.mark.parametrize(
    ("scope", "arguments", "field", "says"),
    [
        (Scope(), {}, "action", "is missing"),
        (Scope(), {"action": "stop"}, "action", "Choose one of start, end"),
        (Scope(), {"action": "start", "type": "expl"}, "name", "is missing"),
        (Scope(), {"action": "start", "name": "a"}, "type", "is missing"),
        (Scope(), {"action": "start", "name": "a\nb", "type": "expl"}, "name", "one line"),
        (Scope(), {**START_EXPL, "description": "soon"}, "description", "belongs to the end"),
        (Scope(), {**START_EXPL, "dependencies": ["x"]}, "dependencies", "by an act only"),
        (Scope(), {**START_ACT, "dependencies": []}, "dependencies", "at least one"),
        (Scope(), START_ACT, "dependencies", "Explore first"),
        (Scope(), END_ACT, "action", "no active episode"),
        (Scope(), {"action": "end", "dependencies": ["x"]}, "dependencies", "not to an end"),
        (Scope(), {"action": "end", "colour": "red"}, "colour", "no such argument"),
        (Scope(), "{", "arguments", "not valid JSON"),
        (Scope(), [1], "arguments", "must be a JSON object"),
        (FOUND, START_EXPL, "name", "used before"),
        (FOUND, {**START_ACT, "dependencies": ["fnd"]}, "dependencies", "Ended expl episodes: find."),
        (FOUND, {**START_ACT, "dependencies": 3}, "dependencies", "not a list of names"),
        (Scope({"find": Kind.EXPL}, "find"), START_ACT, "action", "the expl 'find' is still active"),
        (Scope({"find": Kind.EXPL}, "find"), END_ACT, "description", "needs it"),
        (Scope({"find": Kind.EXPL}, "find"), {**END_EXPL, "name": "other"}, "name", "active episode is 'find'"),
        (Scope({"find": Kind.EXPL}, "find"), {**END_EXPL, "type": "act"}, "type", "is an expl"),
        (
            Scope({"find": Kind.EXPL}, "find"),
            {"action": "end", "description": "x" * (MAX_DESCRIPTION_CHARS + 1)},
            "description",
            "has 2,001 characters",
        ),
        (Scope({"fix": Kind.ACT}, "fix"), END_EXPL, "description", "is an act"),
        (Scope({"fix": Kind.ACT}), {**START_ACT, "name": "b", "dependencies": ["fix"]}, "dependencies", "is an act"),
    ],
)
def test_a_wrong_call_explains_itself_and_changes_nothing(scope: Scope, arguments: Any, field: str, says: str) -> None:
    marked = run_delimiter(scope, arguments)
    assert marked.scope is scope
    assert marked.error is not None
    assert marked.error.field == field
    assert says in marked.result
    assert is_refusal(marked.result)


def test_arguments_that_a_model_fills_in_without_need_do_not_count() -> None:
    filled: dict[str, Any] = {
        "action": "end",
        "name": "",
        "type": None,
        "dependencies": [],
        "description": "  it is\n in a.py ",
    }
    assert read_mark(filled) == read_mark(END_EXPL)
    assert read_mark({**START_EXPL, "description": "", "dependencies": "[]"}) == read_mark(START_EXPL)


@pytest.mark.parametrize("written", [["find", "find"], '["find"]', "find", [" find "]])
def test_dependencies_may_be_written_in_several_ways(written: Any) -> None:
    assert read_mark({**START_ACT, "dependencies": written}).dependencies == ("find",)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
_names = st.sampled_from(["action", "name", "type", "dependencies", "description", "x"])


@given(st.dictionaries(_names, _values | st.sampled_from(["start", "end", "expl", "act", "find"]), max_size=5))
def test_whatever_is_given_is_answered(arguments: dict[str, Any]) -> None:
    marked = run_delimiter(FOUND, arguments)
    assert (marked.error is None) == (marked.scope is not FOUND)
    assert is_refusal(marked.result) == (marked.error is not None)
    assert marked.result == run_delimiter(FOUND, arguments).result


def test_the_guidance_teaches_calls_that_are_valid() -> None:
    guidance = PRESETS["cwl"]
    assert "delimiter" in guidance
    with pytest.raises(InvalidRequest):
        read_mark({"action": "start"})
    for name in ('name="find-config"', 'dependencies=["find-config"]', 'description="..."', 'action="end"'):
        assert name in guidance
