"""Tool arguments as models write them: what is understood, and what each wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.schema.arguments import parse_arguments
from acmserve.context.tools.run import ToolCall, find_tool, run_tool
from acmserve.context.tools.suites import SUITES, tool_names
from acmserve.errors import InvalidRequest
from tests.support.context.conversation import bench, call, refusal, state_of, user

FRAGMENT = find_tool("sculptor", "fragment_context").schema
SCULPTOR_V1 = "sculptor-v1"
SEARCH = find_tool(SCULPTOR_V1, "search_context").schema
MARKERS = {"start_marker": "a", "end_marker": "b"}


def test_defaults_are_filled_in() -> None:
    assert parse_arguments(FRAGMENT, MARKERS) == {**MARKERS, "num_fragments": 5, "role": "user"}
    assert parse_arguments(SEARCH, '{"query": "q"}') == {
        "query": "q",
        "role": "user",
        "max_results": 10,
        "context_size": 200,
        "mode": "exact",
        "similarity_threshold": 0.3,
    }


@pytest.mark.parametrize("number", [7, 7.0, "7", "7.0", " 7 ", "7e0"])
def test_a_number_may_be_written_as_a_string(number: object) -> None:
    value = parse_arguments(FRAGMENT, {**MARKERS, "num_fragments": number})["num_fragments"]
    assert (value, type(value)) == (7, int)


def test_null_means_not_given() -> None:
    assert parse_arguments(FRAGMENT, {**MARKERS, "num_fragments": None, "role": None})["num_fragments"] == 5
    with pytest.raises(InvalidRequest, match="end_marker: is missing"):
        parse_arguments(FRAGMENT, {"start_marker": "a", "end_marker": None})


@pytest.mark.parametrize("arguments", [None, "", "  ", {}, "null"])
def test_no_arguments_are_an_empty_object(arguments: object) -> None:
    assert parse_arguments(find_tool(SCULPTOR_V1, "restore_context").schema, arguments) == {}


COUNT = "Give an integer from 1 to 20: How many fragments to make (default: 5)."
WRONG: list[tuple[Any, str]] = [
    (
        {"start_marker": "a"},
        "end_marker: is missing; fragment_context needs it. Give a string: Text that marks the end",
    ),
    ({**MARKERS, "fold": 1}, "fold: fragment_context has no such argument. Known: start_marker, end_marker, num_fragm"),
    ({**MARKERS, "num_fragments": 0}, f"num_fragments: 0 is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": 21}, f"num_fragments: 21 is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": 2.5}, f"num_fragments: 2.5 is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": "many"}, f"num_fragments: 'many' is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": True}, f"num_fragments: true is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": 10**5000}, f"num_fragments: a very large number is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": "9" * 5000}, f"num_fragments: '{'9' * 57}...' is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": float("nan")}, f"num_fragments: NaN is not allowed. {COUNT}"),
    ({**MARKERS, "num_fragments": [[1]]}, f"num_fragments: an array is not allowed. {COUNT}"),
    ({**MARKERS, "role": "tool"}, "role: 'tool' is not allowed. Choose one of user, assistant, all."),
    ({**MARKERS, "start_marker": 5}, "start_marker: 5 is not allowed. Give a string: Text that marks the beginning"),
    ({**MARKERS, "start_marker": {"a": {}}}, "start_marker: an object is not allowed. Give a string: Text that marks"),
    ({**MARKERS, "start_marker": "ab\udcff"}, "start_marker: character 2 is half of a surrogate pair. Give whole char"),
    ({5: 5}, "5: fragment_context has no such argument. Known: "),
    ("{", "arguments: of fragment_context are not valid JSON: Expecting property name"),
    ("[" * 100_000, "arguments: of fragment_context are nested too deeply."),
    ("1" * 5000, "arguments: of fragment_context are not valid JSON: Exceeds the limit"),
    ("[]", "arguments: of fragment_context must be a JSON object, not an array."),
    (5, "arguments: of fragment_context must be a JSON object, not 5."),
    ({1, 2}, "arguments: of fragment_context must be a JSON object, not set."),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG, ids=[told[:40] for _, told in WRONG])
def test_a_wrong_argument_is_told_what_it_may_be(arguments: Any, told: str) -> None:
    state = state_of(user("a b"))
    outcome = run_tool(state, ToolCall("fragment_context", arguments), bench())
    assert refusal(state, outcome).startswith(f"Error: {told}")


@pytest.mark.parametrize("threshold", [-0.1, 1.1, "nan", float("inf")])
def test_a_threshold_is_between_zero_and_one(threshold: object) -> None:
    state = state_of(user("a b"))
    outcome = call(state, "search_context", suite="sculptor-v1", query="a", similarity_threshold=threshold)
    assert "is not allowed. Give a number from 0 to 1: Least cosine similarity" in refusal(state, outcome)


@pytest.mark.parametrize("name", ["fold", "", "x" * 100_000, None, 5, ["fold_fragment"], {}])
def test_an_unknown_tool_names_those_of_the_suite(name: Any) -> None:
    state = state_of(user("a b"))
    result = refusal(state, run_tool(state, ToolCall(name, {}), bench()))
    assert result.startswith("Error: name: suite sculptor has no tool ")
    assert result.endswith(f"Its tools: {', '.join(tool_names('sculptor'))}.")
    assert len(result) < 300


@pytest.mark.parametrize("suite", ["v3", None, ["sculptor"]])
def test_an_unknown_suite_is_refused(suite: Any) -> None:
    state = state_of(user("a b"))
    outcome = call(state, "fold_fragment", suite=suite, fragment_id="f1a2b3")
    assert refusal(state, outcome).endswith(f"Choose {' or '.join(SUITES)}.")
