"""Reading `context_management`: the vendor's defaults, every parameter, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.eviction.clear_thinking import ClearThinking
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.clearing_edits import Compact
from acmserve.errors import InvalidRequest
from acmserve.server.options.context_management import parse_context_management
from tests.support.server.bad_context_management import BAD_VALUES, COMPACT, THINKING, TOOLS


def parse(*edits: Any) -> Any:
    return parse_context_management({"context_management": {"edits": list(edits)}})


def test_the_vendors_defaults() -> None:
    defaults = (ClearThinking(1), ClearToolUses(100_000, None, 3), Compact(150_000, False, ""))
    assert parse({"type": THINKING}, {"type": TOOLS}, {"type": COMPACT}) == defaults


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"context_management": None}, None),
        ({"context_management": {}}, ()),
        ({"context_management": {"edits": None}}, ()),
        ({"context_management": {"edits": []}}, ()),
    ],
)
def test_not_given_and_empty(body: dict[str, Any], expected: tuple[()] | None) -> None:
    assert parse_context_management(body) == expected


def test_every_parameter_of_tool_uses() -> None:
    edit = {
        "type": TOOLS,
        "trigger": {"type": "tool_uses", "value": 9},
        "keep": {"type": "tool_uses", "value": 0},
        "clear_at_least": {"type": "input_tokens", "value": 500},
        "exclude_tools": ["memory"],
        "clear_tool_inputs": ["read", "search"],
    }
    assert parse(edit) == (ClearToolUses(None, 9, 0, 500, frozenset({"memory"}), frozenset({"read", "search"})),)


def test_null_means_not_given() -> None:
    names = ("trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs")
    assert parse({"type": TOOLS} | dict.fromkeys(names)) == (ClearToolUses(),)


def test_tool_inputs_of_all_tools_or_of_those_named() -> None:
    assert parse({"type": TOOLS, "clear_tool_inputs": True})[0].clears_inputs("read")
    assert not parse({"type": TOOLS, "clear_tool_inputs": ["search"]})[0].clears_inputs("read")
    assert not parse({"type": TOOLS, "clear_tool_inputs": False})[0].clears_inputs("read")


@pytest.mark.parametrize(
    ("keep", "expected"),
    [("all", None), ({"type": "all"}, None), ({"type": "thinking_turns", "value": 2}, 2), (None, 1)],
)
def test_keep_of_thinking(keep: Any, expected: int | None) -> None:
    assert parse({"type": THINKING, "keep": keep}) == (ClearThinking(expected),)


def test_every_parameter_of_compact() -> None:
    trigger = {"type": "input_tokens", "value": 3000}
    edit = {"type": COMPACT, "trigger": trigger, "pause_after_compaction": True, "instructions": " Only names.\n"}
    assert parse(edit, {"type": TOOLS}) == (Compact(3000, True, "Only names."), ClearToolUses())
    nulls = dict.fromkeys(("trigger", "pause_after_compaction", "instructions"))
    assert parse({"type": COMPACT} | nulls) == (Compact(),)
    assert parse({"type": COMPACT, "instructions": " "}) == (Compact(),)


@pytest.mark.parametrize(("value", "field"), BAD_VALUES)
def test_bad_values_are_refused_by_their_path(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_context_management({"context_management": value})
    assert refused.value.field == field
    assert len(refused.value.message) > 10
