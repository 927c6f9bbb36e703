"""The search benchmark: its gate lets right results pass and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.bench.micro import search
from acmserve.context.session.fragment import Visibility
from acmserve.context.tools.run import ToolCall, ToolContext, run_tool


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "NUM_CHARS", 20_000)


@pytest.mark.parametrize("script", search.ALPHABETS)
@pytest.mark.parametrize("num_messages", [1, 40])
def test_every_query_passes_the_gate(script: str, num_messages: int) -> None:
    state = search.make_context(script, num_messages)
    assert sum(len(entry.message["content"]) for entry in state.entries) == search.NUM_CHARS
    assert state.fragments[-1].visibility is Visibility.FOLDED
    rows = [search.measure(state, script, name, query, 1) for name, query in search.queries(script)]
    assert [row is not None and row.num_matches > 0 for row in rows] == [True, True, False, True, True, False]


def test_the_gate_is_red_for_a_wrong_result() -> None:
    state = search.make_context("latin", 1)
    query = search.ALPHABETS["latin"][4]
    outcome = run_tool(
        state, ToolCall("search_context", {"query": query, "max_results": 50}), ToolContext(search.SearchWords())
    )
    matches = search.expected(state, query)
    assert search.is_right(state, outcome, matches)
    assert not search.is_right(state, outcome, matches[:-1])
    assert not search.is_right(state, outcome, matches[1:])
    moved = replace(outcome.state, hits=outcome.state.hits[1:])
    assert not search.is_right(state, replace(outcome, state=moved), matches)
    assert not search.is_right(replace(state, entries=()), outcome, matches)


def test_zero_repetitions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        search.main(["--repetitions", "0"])
    assert "--repetitions must be at least 1" in capsys.readouterr().err
