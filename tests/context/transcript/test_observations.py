"""What counts as an observation: results of programs in the user's name, and never what a person typed."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.transcript.observations import (
    AUTO,
    MAX_BEGINNING_CHARS,
    MAX_BEGINNINGS,
    ObservationRule,
    parse_observations,
)
from acmserve.context.transcript.outline import TEXT, Outline, Use, pair_results
from acmserve.context.transcript.parts import Role
from acmserve.errors import IntegrityError, InvalidRequest
from tests.support.context.agent_traces import STYLES, AgentTrace

CODE = {"role": "assistant", "content": "Run this:\n```bash\nls\n```"}
CALL = {"role": "assistant", "content": "```x```", "tool_calls": [{"id": "c", "function": {"name": "ls"}}]}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def found(messages: list[dict[str, Any]], rule: ObservationRule = AUTO) -> list[int]:
    return [n for n in range(1, len(messages)) if rule.takes(messages[n], messages[n - 1])]


@pytest.mark.parametrize("style", [style for style in STYLES if style != "tools"])
def test_every_step_of_such_an_agent_is_found_and_no_question(style: str) -> None:
    trace = AgentTrace(style, 11, question_share=0.2)
    for _ in range(60):
        trace.grow()
    assert len(trace.asked) > 5
    results = [n for n, m in enumerate(trace.messages) if m["role"] == "user" and m not in trace.asked]
    assert found(trace.messages) == results


@pytest.mark.parametrize(
    "typed",
    [
        "Thanks, that worked. And now?",
        "I get this:\nTraceback (most recent call last):\n  File a.py",
        "output is wrong, see below:\n```\n3\n```",
        "The observation: it fails.",
        "Observations like these are useful, go on.",
        "yes",
        "",
        "Result of my test: it fails",
        "<b>bold</b> please",
        "Please terminal output",
    ],
)
def test_what_a_person_types_behind_a_code_block_is_a_turn_of_the_user(typed: str) -> None:
    assert not AUTO.takes(user(typed), CODE)
    assert not AUTO.takes(user([{"type": "text", "text": typed}]), CODE)


@pytest.mark.parametrize(
    "before",
    [None, {"role": "system", "content": "```"}, user("```"), {"role": "assistant", "content": "It is done."}, CALL],
)
def test_a_result_needs_an_action_in_front(before: dict[str, Any] | None) -> None:
    assert AUTO.takes(user("Observation: 3"), CODE)
    assert not AUTO.takes(user("Observation: 3"), before)


def test_a_client_says_what_its_results_are() -> None:
    said, plain = user("== ran =="), {"role": "assistant", "content": "It is done."}
    assert found([user("task"), plain, said, plain, user("more")], ObservationRule("user")) == [2, 4]
    assert found([user("task"), plain, said, plain, user("more")], parse_observations(["== ran"], "f")) == [2]
    assert found([user("task"), CODE, user("Observation: 3")], ObservationRule("off")) == []
    assert not ObservationRule("user").takes({"role": "tool", "content": "x"}, plain)


@pytest.mark.parametrize("value", ["auto", "user", "off", ["Observation:", "<out>"]])
def test_a_rule_reads_back_equal(value: object) -> None:
    rule = parse_observations(value, "acm.observations")
    assert rule.as_json() == value
    assert parse_observations(rule.as_json(), "acm.observations") == rule


@pytest.mark.parametrize(
    "value",
    ["on", "", [], 3, True, {"user": 1}, [""], [3], ["x" * (MAX_BEGINNING_CHARS + 1)], ["x"] * (MAX_BEGINNINGS + 1)],
)
def test_a_bad_rule_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_observations(value, "acm.observations")
    assert refused.value.field == "acm.observations"
    assert '"auto"' in refused.value.remedy


def test_an_observation_answers_the_text_in_front_of_it() -> None:
    messages = [user("task"), CODE, user("Observation: 3"), CALL, {"role": "tool", "tool_call_id": "c", "content": "4"}]
    outline = Outline(messages, {2})
    assert [line.role for line in outline.lines] == [Role.PROTECTED, *([Role.ASSISTANT, Role.RESULT] * 2)]
    assert outline.lines[2].use == Use(1, TEXT)
    assert outline.results(Use(1, TEXT)) == [2]
    assert pair_results(messages, {2}) == [(line.role, line.use) for line in outline.lines]
    outline.check_integrity()
    outline.lines[1].observation = 4
    with pytest.raises(IntegrityError, match="text 1 has observation 4"):
        outline.check_integrity()


def test_an_observation_without_a_text_in_front_stands_for_itself() -> None:
    messages = [user("task"), CALL, user("Observation: 3")]
    assert Outline(messages, {2}).lines[2].use is None
    assert pair_results(messages, {2})[2] == (Role.RESULT, None)


def test_hostile_texts_take_linear_time() -> None:
    """No pattern backtracks: a million characters are searched, not tried again from each."""
    texts = {"`" * 10**6: True, " " * 10**6 + "x": False, "action " * 10**5: False, "\n" * 10**6: False}
    for text, is_action in (texts | {"<tool" * 10**5: True}).items():
        assert AUTO.takes(user(f"Observation: {text}"), {"role": "assistant", "content": text}) is is_action
        assert not AUTO.takes(user(text), {"role": "assistant", "content": text + "```"})
