"""Budgets as people write them, and what is refused, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.eviction.budget_json import budget_value, parse_budget
from acmserve.context.session.budget import Budget
from acmserve.errors import InvalidRequest

WINDOW = 131_072


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        (80000, 80_000),
        ("80000", 80_000),
        ("80k", 80_000),
        ("80 K", 80_000),
        ("80_000", 80_000),
        ("80,000", 80_000),
        (80000.0, 80_000),
        ("1.5k", 1_500),
        ("50%", 65_536),
        ("100%", WINDOW),
    ],
)
def test_max_tokens(written: Any, tokens: int) -> None:
    assert parse_budget({"max_tokens": written}, WINDOW).max_tokens == tokens
    assert parse_budget(written, WINDOW) == parse_budget({"max_tokens": written}, WINDOW)


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ("auto", None),
        ("max_tokens", 80_000),
        (60000, 60_000),
        ("60k", 60_000),
        (0.5, 40_000),
        ("50%", 40_000),
        (1.0, 80_000),
        (80000, 80_000),
    ],
)
def test_low_watermark(written: Any, tokens: int | None) -> None:
    assert parse_budget({"max_tokens": "80k", "low_watermark": written}, WINDOW).low_watermark == tokens


def test_the_defaults() -> None:
    assert parse_budget({}, WINDOW) == Budget(80_000)
    assert parse_budget({}, 4096).max_tokens == 4096


@pytest.mark.parametrize(
    ("value", "field", "says"),
    [
        ({"max_tokens": 0}, "budget.max_tokens", "80k"),
        ({"max_tokens": -5}, "budget.max_tokens", "-5"),
        ({"max_tokens": True}, "budget.max_tokens", "true"),
        ({"max_tokens": None}, "budget.max_tokens", "null"),
        ({"max_tokens": "many"}, "budget.max_tokens", "'many'"),
        ({"max_tokens": "150%"}, "budget.max_tokens", "'150%'"),
        ({"max_tokens": "0%"}, "budget.max_tokens", "'0%'"),
        ({"max_tokens": 0.5}, "budget.max_tokens", "0.5"),
        ({"max_tokens": float("nan")}, "budget.max_tokens", "NaN"),
        ({"max_tokens": 10**30}, "budget.max_tokens", "context window of 131,072"),
        ({"max_tokens": 200000}, "budget.max_tokens", "context window of 131,072"),
        ({"low_watermark": 90000}, "budget.low_watermark", "above max_tokens, 80,000"),
        ({"low_watermark": "low"}, "budget.low_watermark", "'low'"),
        ({"low_watermark": 0}, "budget.low_watermark", "0.6"),
        ({"low_watermark": 1.5}, "budget.low_watermark", "1.5"),
        ({"low_watermark": [1]}, "budget.low_watermark", "an array"),
        ({"policy": "lru"}, "budget.policy", "Choose chain, cwl, pi-cwl, clear_tool_uses, recency, compact"),
        ({"policy": ["cwl"]}, "budget.policy", "an array"),
        ({"size": 3}, "budget.size", "Known: max_tokens, low_watermark, policy"),
        ({3: 3}, "budget.3", "not known"),
        ({"policy": "cwl", "keep": 3}, "budget.keep", "goes with chain or clear_tool_uses"),
        ({"policy": "clear_tool_uses", "keep": -1}, "budget.keep", "-1"),
        ({"policy": "clear_tool_uses", "clear_tool_inputs": "yes"}, "budget.clear_tool_inputs", "true or false"),
        ({"policy": "compact", "instructions": 3}, "budget.instructions", "as a text"),
        ({"bulk_tools": "grep"}, "budget.bulk_tools", "list of tool names"),
        ({"bulk_tools": ["a"], "intermediate_tools": ["a"]}, "budget.bulk_tools", "a is named"),
    ],
)
def test_a_bad_value_is_refused_by_name(value: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_budget(value, WINDOW)
    assert error.value.field == field
    assert says in str(error.value)


@pytest.mark.parametrize(
    "value",
    [
        {"max_tokens": "80k", "low_watermark": 0.5, "bulk_tools": ["rg"]},
        {"policy": "clear_tool_uses", "keep": 1, "exclude_tools": ["memory"], "clear_tool_inputs": True},
        {"policy": "compact", "instructions": "Keep the paths."},
        {"policy": "recency", "low_watermark": "auto"},
    ],
)
def test_it_reads_back_what_it_writes(value: Any) -> None:
    budget = parse_budget(value, WINDOW)
    assert parse_budget(json.loads(json.dumps(budget_value(budget))), WINDOW) == budget


_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from(["max_tokens", "low_watermark", "policy", "keep", "bulk_tools"]), _values))
def test_whatever_is_written_is_read_or_refused(value: dict[str, Any]) -> None:
    budget, refused = None, ""
    try:
        budget = parse_budget(value, WINDOW)
    except InvalidRequest as error:
        refused = error.field
    assert (budget is None) == refused.startswith("budget.")
    assert budget is None or 1 <= (budget.low_watermark or 1) <= budget.max_tokens <= WINDOW
