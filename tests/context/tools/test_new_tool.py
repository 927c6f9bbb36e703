"""A new tool is one file and one registry line: it is offered, validated, run, found by searches and documented."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.context.tools.suites import SCULPTOR, SUITES, find_suite, suite_tools, table, tool_names
from tests.support.context.conversation import call, done, refusal, state_of, user
from tests.support.context.count_words import COUNT_WORDS


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry line."""
    suite = SUITES[SCULPTOR]
    monkeypatch.setitem(SUITES, SCULPTOR, replace(suite, tools=(*suite.tools, COUNT_WORDS)))


def test_it_is_offered_and_documented() -> None:
    assert tool_names(SCULPTOR)[-1] == "count_words"
    assert suite_tools(SCULPTOR)[-1] == COUNT_WORDS.schema
    assert find_suite(("cwl", SCULPTOR), "count_words") == SCULPTOR
    assert "| `count_words` | `sculptor` | counts words | nothing |" in table()


def test_it_runs_and_its_words_reach_the_model() -> None:
    outcome = call(state_of(user("one two three")), "count_words")
    assert done(outcome)
    assert (outcome.result, outcome.changed) == ("3 words of role user.", False)


def test_its_arguments_are_validated() -> None:
    state = state_of(user("one"))
    assert "role: 'tool' is not allowed. Choose one of" in refusal(state, call(state, "count_words", role="tool"))
    assert "count_words has no such argument" in refusal(state, call(state, "count_words", words=1))


def test_no_search_finds_its_results() -> None:
    asked = {"id": "c1", "type": "function", "function": {"name": "count_words", "arguments": "{}"}}
    answered = {"role": "tool", "tool_call_id": "c1", "content": "3 words"}
    state = state_of(user("one two three"), {"role": "assistant", "tool_calls": [asked]}, answered)
    assert call(state, "search_context", query="3 words", role="all").result.startswith("No match")
