"""What a client may say about the loop, and what it is told when it says something else."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.errors import InvalidRequest
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.loop_options import LOOP_KEYS, MAX_TOOL_CALLS, LoopOptions, parse_loop_options


@pytest.mark.parametrize("acm", [{}, {"fidelity": "reuse"}, {"tools": None, "max_tool_calls": None}])
def test_without_tools_there_is_no_loop(acm: dict[str, Any]) -> None:
    assert parse_loop_options(acm, 20) is None


def test_defaults_are_the_servers() -> None:
    assert parse_loop_options({"tools": "sculptor"}, 7) == LoopOptions(("sculptor",), 7, False, None)


def test_every_key_is_read() -> None:
    acm = {"tools": ["sculptor-v1", "branch"], "max_tool_calls": 100, "first_call_required": True, "preset": "pi-llm"}
    acm |= {"branch": {"max_tokens": 4000, "max_branches": 10}, "commit": "cheapest"}
    assert set(acm) == set(LOOP_KEYS)
    suites = ("sculptor-v1", "branch")
    told = LoopOptions(suites, 100, True, "pi-llm", 4000, "cheapest", 10)
    assert parse_loop_options(acm | {"fidelity": "exact"}, 20) == told


def test_suites_go_together() -> None:
    options = parse_loop_options({"tools": ["sculptor", "cwl", "cwl"], "preset": "cwl"}, 20)
    assert options == LoopOptions(("sculptor", "cwl"), 20, False, "cwl")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tools", "chisel", "'sculptor' or 'sculptor-paper'"),
        ("tools", ["sculptor", "chisel"], "'sculptor' or 'sculptor-paper' or 'sculptor-v1' or 'cwl'"),
        ("tools", [], "names no tool suite. Choose sculptor or sculptor-paper or sculptor-v1 or cwl"),
        (
            "tools",
            ["sculptor", "sculptor-v1"],
            "names two suites with the same tools. Choose sculptor or sculptor-paper",
        ),
        ("max_tool_calls", 0, "from 1 to 100, not 0"),
        ("commit", "later", "Choose 'now' or 'cheapest'"),
        ("max_tool_calls", 101, "from 1 to 100, not 101"),
        ("max_tool_calls", True, "from 1 to 100, not True"),
        ("max_tool_calls", "20", "from 1 to 100, not '20'"),
        ("first_call_required", "yes", "true or false"),
        ("preset", "\u2603" * 200, "'unified' or 'pi-llm' or 'needlebench'"),
        ("branch", {"max_tokens": 4000}, "has no meaning without the tools 'branch'"),
    ],
)
def test_bad_values_are_named_with_what_is_allowed(key: str, value: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_loop_options({"tools": "sculptor", key: value}, 20)
    assert caught.value.field == f"acm.{key}"
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


def test_options_of_a_loop_that_is_not_asked_for_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"acm\.preset: has no meaning without acm\.tools"):
        parse_loop_options({"preset": "unified"}, 20)


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        (4000, "acm.branch", "must be an object, not 4000"),
        ({"max_token": 1}, "acm.branch.max_token", "unknown key"),
        ({"max_tokens": 0}, "acm.branch.max_tokens", "at least 1, not 0"),
        ({"max_tokens": True}, "acm.branch.max_tokens", "at least 1, not True"),
        ({"max_tokens": "8k"}, "acm.branch.max_tokens", "not '8k'"),
        ({"max_branches": 0}, "acm.branch.max_branches", "of branches, at least 1, not 0. Leave it out for any number"),
        ({"max_branches": True}, "acm.branch.max_branches", "at least 1, not True"),
        ({"max_branches": 1.5}, "acm.branch.max_branches", "at least 1, not 1.5"),
        ({"max_tokens": 9, "max_branches": "10"}, "acm.branch.max_branches", "not '10'"),
        ({"max_branch": 10}, "acm.branch.max_branch", "Did you mean 'max_branches'"),
    ],
)
def test_a_bad_limit_of_branches_is_named(value: object, field: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        parse_loop_options({"tools": "branch", "branch": value}, 20)
    assert caught.value.field == field


@pytest.mark.parametrize("branch", [{}, {"max_tokens": None, "max_branches": None}])
def test_without_limits_of_branches_there_are_the_defaults(branch: dict[str, Any]) -> None:
    assert parse_loop_options({"tools": "branch", "branch": branch}, 20) == LoopOptions(("branch",), 20)


def test_a_default_is_one_that_a_request_may_have() -> None:
    for number in (1, MAX_TOOL_CALLS):
        assert ContextConfig.parse({"context": {"max_tool_calls": number}}).max_tool_calls == number
        assert parse_loop_options({"tools": "sculptor"}, number) is not None
    with pytest.raises(InvalidRequest, match="--max-tool-calls: must be from 1 to 100, not 101"):
        ContextConfig.parse({"context": {"max_tool_calls": MAX_TOOL_CALLS + 1}})
