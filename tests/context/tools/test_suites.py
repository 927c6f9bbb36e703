"""The suites against the Sculptor paper (arXiv 2508.04664): version 2, Figures 10 to 15, and version 1, section 3.2."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from acmserve.context.schema.suite_registry import editing_suites, find_suite_file
from acmserve.context.tools.suites import (
    BRANCHES,
    PRESETS,
    SCULPTOR,
    SUITES,
    check_suites,
    find_preset,
    suite_tools,
    table,
    tool_names,
)
from acmserve.errors import InvalidRequest, NotFound

TEXT = {"type": "string"}
ROLE = {"type": "string", "enum": ["user", "assistant", "all"], "default": "user"}


def integer(default: int, minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "default": default, "minimum": minimum, "maximum": maximum}


FRAGMENT = {"start_marker": TEXT, "end_marker": TEXT, "num_fragments": integer(5, 1, 20), "role": ROLE}
SEARCH = {"query": TEXT, "role": ROLE, "max_results": integer(10, 1, 50), "context_size": integer(200, 50, 1000)}
DETAIL = {"search_id": TEXT, "extended_context": integer(500, 100, 2000)}
MEANING = {
    "mode": {"type": "string", "enum": ["exact", "semantic"], "default": "exact"},
    "similarity_threshold": {"type": "number", "default": 0.3, "minimum": 0, "maximum": 1},
}
BY_ID = ({"fragment_id": TEXT}, ["fragment_id"])
BY_FOCUS = ({"fragment_id": TEXT, "focus": TEXT}, ["fragment_id", "focus"])
CWL, PAPER, SCULPTOR_V1 = "cwl", "sculptor-paper", "sculptor-v1"
SIX: dict[str, tuple[dict[str, Any], list[str]]] = {
    "fragment_context": (FRAGMENT, ["start_marker", "end_marker"]),  # Figure 10
    "fold_fragment": BY_ID,  # Figure 11
    "restore_fragment": BY_ID,  # Figure 12
    "summarize_fragment": BY_FOCUS,  # Figure 13
    "search_context": (SEARCH, ["query"]),  # Figure 14
    "get_search_detail": (DETAIL, ["search_id"]),  # Figure 15
}
TABLE: dict[str, dict[str, tuple[dict[str, Any], list[str]]]] = {
    SCULPTOR: SIX,
    PAPER: SIX,
    SCULPTOR_V1: {
        "fragment_context": (FRAGMENT, ["start_marker", "end_marker"]),
        "summary_fragment": BY_FOCUS,
        "revert_summary": BY_ID,
        "fold_fragment": BY_ID,
        "expand_fragment": BY_ID,
        "restore_context": ({}, []),
        "search_context": ({**SEARCH, **MEANING}, ["query"]),
        "get_search_detail": (DETAIL, ["search_id"]),
    },
}
DIGESTS = {
    SCULPTOR: "ff2e0848ff3107a8",
    PAPER: "d4957a17f1365a88",
    SCULPTOR_V1: "35644eb108906b22",
    CWL: "c732a04a83ef627e",
    BRANCHES: "3c85f943197bc45b",
}


def test_the_suites_and_their_tools_in_order() -> None:
    assert {suite: list(tool_names(suite)) for suite in editing_suites()} == {
        suite: list(tools) for suite, tools in TABLE.items()
    }


@pytest.mark.parametrize(("suite", "name"), [(suite, name) for suite, tools in TABLE.items() for name in tools])
def test_a_tool_has_the_papers_schema(suite: str, name: str) -> None:
    [tool] = [tool for tool in suite_tools(suite) if tool["function"]["name"] == name]
    properties, required = TABLE[suite][name]
    assert tool.keys() == {"type", "function"}
    assert tool["type"] == "function"
    assert tool["function"].keys() == {"name", "description", "parameters"}
    parameters = tool["function"]["parameters"]
    assert parameters.keys() == {"type", "properties", "required", "additionalProperties"}
    assert (parameters["type"], parameters["required"], parameters["additionalProperties"]) == (
        "object",
        required,
        False,
    )
    assert list(parameters["properties"]) == list(properties)
    for argument, schema in parameters["properties"].items():
        assert schema["description"]
        assert {key: value for key, value in schema.items() if key != "description"} == properties[argument]


@pytest.mark.parametrize("suite", SUITES)
def test_schemas_are_valid_and_ready_for_a_request(suite: str) -> None:
    tools = suite_tools(suite)
    assert json.loads(json.dumps(tools)) == list(tools)
    for tool in tools:
        Draft202012Validator.check_schema(tool["function"]["parameters"])


@pytest.mark.parametrize(("suite", "digest"), DIGESTS.items())
def test_not_a_byte_of_a_schema_changes(suite: str, digest: str) -> None:
    """A changed byte computes every conversation that has the tools again."""
    written = json.dumps(suite_tools(suite)).encode()
    assert hashlib.blake2b(written, digest_size=8).hexdigest() == digest


def test_the_table_of_the_documentation_has_every_tool() -> None:
    rows = table()[2:]
    offered = {(tool.name, tool.operation.does) for suite in SUITES.values() for tool in suite.tools}
    assert len(rows) == len(offered)
    assert all(any(row.startswith(f"| `{name}` |") and does in row for row in rows) for name, does in offered)


def test_every_marker_names_a_tool() -> None:
    assert set(editing_suites()) == SUITES.keys() - {CWL, BRANCHES}
    for suite in editing_suites():
        for marker in ("folded", "summarized"):
            assert any(f'{name}("' in find_suite_file(suite).markers[marker] for name in tool_names(suite))


def test_an_unknown_suite_names_those_there_are() -> None:
    with pytest.raises(
        NotFound, match=r"suite: there is no tool suite 'v3'\. Choose sculptor or sculptor-paper or sculptor-v1 or cwl"
    ):
        suite_tools("v3")


def test_presets_teach_what_an_edit_costs() -> None:
    ours, papers = (
        {"unified", "pi-llm", "needlebench"},
        {f"{PAPER}/{name}" for name in ("unified", "pi-llm", "needlebench")},
    )
    assert set(PRESETS) == {*ours, *papers, "cwl", "branch"}
    assert {name for name, prompt in PRESETS.items() if "fold early" in prompt} == ours
    assert PRESETS["unified"].startswith(
        "You are a helpful assistant. You can autonomously manage your own context: fold"
    )
    assert "`fragment_context` tool to split the long text" in PRESETS["pi-llm"]
    assert "`search_context` and `get_search_detail` tools" in PRESETS["needlebench"]


def test_a_preset_is_that_of_the_suite_which_is_asked_for() -> None:
    assert find_preset((PAPER,), "unified") == f"{PAPER}/unified"
    assert find_preset((SCULPTOR, CWL), "unified") == find_preset((SCULPTOR_V1,), "unified") == "unified"
    assert PRESETS["unified"].startswith(PRESETS[f"{PAPER}/unified"])


def test_suites_that_share_tools_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="names two suites with the same tools"):
        check_suites([SCULPTOR, PAPER], "acm.tools")
