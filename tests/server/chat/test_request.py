"""The requests of a loop: the same tools and prompt in every step, the client's own objects untouched."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.tools.suites import PRESETS
from acmserve.errors import InvalidRequest
from acmserve.server.chat.request import LoopRequest
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.options.preset import with_preset

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "weather", "arguments": "{}"}}]},
]


def options(**changed: Any) -> LoopOptions:
    return LoopOptions(**({"suites": ("sculptor",), "max_tool_calls": 3} | changed))


def test_every_step_offers_the_same_tools_the_clients_first() -> None:
    body = {"tools": [WEATHER], "temperature": 0.5, "response_format": {"type": "text"}, "acm": {"tools": "sculptor"}}
    request = LoopRequest(body, options())
    steps = [request.step(MESSAGES, number, num_calls) for number, num_calls in ((0, 0), (1, 2), (2, 3))]
    assert steps[0]["tools"] == steps[1]["tools"] == steps[2]["tools"]
    assert [tool["function"]["name"] for tool in steps[0]["tools"]] == list(request.tool_names)
    assert request.tool_names[:2] == ("weather", "fragment_context")
    assert [step["tool_choice"] for step in steps] == ["auto", "auto", "none"]
    assert all(step["temperature"] == 0.5 and "acm" not in step for step in steps)


@pytest.mark.parametrize(
    ("given", "required", "first"), [(None, False, "auto"), ("none", False, "none"), ("none", True, "required")]
)
def test_the_client_chooses_only_in_the_first_step(given: str | None, required: bool, first: str) -> None:
    request = LoopRequest({"tool_choice": given}, options(first_call_required=required))
    assert request.step(MESSAGES, 0, 0)["tool_choice"] == first
    assert request.step(MESSAGES, 1, 1)["tool_choice"] == "auto"


def test_a_body_shares_nothing_with_the_session() -> None:
    body = LoopRequest({}, options()).step(MESSAGES, 0, 0)
    body["messages"][1]["tool_calls"][0]["function"]["arguments"] = {}
    assert MESSAGES[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("system", "merged"),
    [
        ([], [{"role": "system", "content": PRESETS["unified"]}]),
        (
            [{"role": "system", "content": "Be brief."}],
            [{"role": "system", "content": f"Be brief.\n\n{PRESETS['unified']}"}],
        ),
        (
            [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}],
            [
                {
                    "role": "developer",
                    "content": [
                        {"type": "text", "text": "Be brief."},
                        {"type": "text", "text": PRESETS["unified"]},
                    ],
                }
            ],
        ),
    ],
)
def test_a_preset_joins_the_clients_instructions(system: list[Any], merged: list[Any]) -> None:
    assert with_preset([*system, *MESSAGES], "unified") == [*merged, *MESSAGES]
    assert with_preset([*system, *MESSAGES], None) == [*system, *MESSAGES]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [WEATHER, {"function": {"name": "fold_fragment"}}]}, "tools[1].function.name"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"echo": True}, "echo"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "structured_outputs"),
    ],
)
def test_what_a_loop_cannot_serve_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LoopRequest(body, options())
    assert caught.value.field == field
