"""The search benchmark, small: its gate lets right results pass and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from acmserve.bench.micro import bench_search as search
from acmserve.bench.micro.bench_search import bench_search as test_search
from acmserve.bench.micro.bench_search import context
from acmserve.bench.micro.words import WordCounter
from acmserve.context.session.fragment import Visibility
from acmserve.context.tools.run import ToolContext, run_tool

__all__ = ["context", "test_search"]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "NUM_CHARS", 400_000)
        yield


@pytest.mark.parametrize("script", search.ALPHABETS)
def test_the_queries_are_what_they_are_called(script: str) -> None:
    state = search.make_context(script, 40)
    assert sum(len(entry.message["content"]) for entry in state.entries) == search.NUM_CHARS
    assert state.fragments[-1].visibility is Visibility.FOLDED
    found = [bool(search.expected(state, make(script))) for make in search.QUERIES.values()]
    assert found == [True, True, False, True, True, False]


def test_the_gate_is_red_for_a_wrong_result() -> None:
    state = search.make_context("latin", 1)
    query = search.QUERIES["all over"]("latin")
    outcome = run_tool(state, search.search_call(query), ToolContext(WordCounter()))
    matches = search.expected(state, query)
    assert search.is_right(state, outcome, matches)
    assert not search.is_right(state, outcome, matches[:-1])
    assert not search.is_right(state, outcome, matches[1:])
    moved = replace(outcome.state, hits=outcome.state.hits[1:])
    assert not search.is_right(state, replace(outcome, state=moved), matches)
    assert not search.is_right(replace(state, entries=()), outcome, matches)
