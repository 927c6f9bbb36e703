"""The conversation that benchmarks replay, and what is read of a run of it, without a server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from acmserve.bench.agent.conversation import (
    ConversationRun,
    ConversationTurn,
    check_run,
    cleared_at,
    orphans,
    read_turn,
)
from acmserve.bench.agent.scripted_agent import Exchanged, Trace, make_trace
from acmserve.bench.harness.library_text import Library, cut, read_library
from acmserve.context.episodes.delimiter import Scope, run_delimiter
from acmserve.context.episodes.episode import Kind


class Words:
    """A token is a word."""

    def starts(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\S+", text)]


@pytest.fixture(scope="module")
def library() -> Library:
    return read_library()


@pytest.fixture(scope="module")
def trace(library: Library) -> Trace:
    return make_trace(library, Words())


def calls(said: str) -> list[dict[str, Any]]:
    return [json.loads(body) for body in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", said)]


def test_the_trace_is_long_and_the_same_each_time(library: Library, trace: Trace) -> None:
    assert trace.num_turns >= 200
    assert make_trace(library, Words()).digest == trace.digest
    short = make_trace(library, Words(), 3)
    assert short.requests == trace.requests[: len(short.requests)]


def test_results_have_the_sizes_of_real_ones(trace: Trace) -> None:
    sizes = [len(request.result.split()) for request in trace.requests if request.result is not None]
    assert sum(size <= 250 for size in sizes) >= 130
    assert sum(500 <= size <= 2000 for size in sizes) >= 20
    assert 3 <= sum(size >= 2000 for size in sizes) <= 6


def test_episodes_are_marked_as_the_tool_wants_them(trace: Trace) -> None:
    """Every call of `delimiter` is valid. Acts depend on explorations. Nothing is active when a task is over."""
    scope, num_marks = Scope(), 0
    for request in trace.requests:
        if request.asked is not None:
            assert scope.active is None
        for said in request.said:
            for call in calls(said):
                if call["name"] == "delimiter":
                    marked = run_delimiter(scope, call["arguments"])
                    assert marked.error is None, marked.result
                    scope, num_marks = marked.scope, num_marks + 1
    assert num_marks == 2 * len(scope.kinds)
    assert {name for name, kind in scope.kinds.items() if kind is Kind.EXPL} == set(trace.descriptions)
    assert sum(kind is Kind.ACT for kind in scope.kinds.values()) == 20


def test_a_text_is_cut_after_a_number_of_tokens() -> None:
    assert cut("one two three", 2, Words()) == "one two "
    assert cut("one two three", 3, Words()) == "one two three"


def test_orphans_are_found() -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}, {"id": "b"}]}
    answers = [{"role": "tool", "tool_call_id": name, "content": ""} for name in "ab"]
    assert orphans([asked, *answers]) == []
    assert orphans([answers[0]]) == ["a result stands without its call, a"]
    assert orphans([asked, answers[0]]) == ["a call stands without its result, b"]
    assert orphans([asked, answers[0]], waiting=True) == []
    assert orphans([asked, answers[0], {"role": "assistant", "content": "Well."}], waiting=True) != []


def test_a_turn_reads_markers_and_summaries_out_of_the_answer() -> None:
    evicted = [
        {"episode": "find-1a", "levels": {"strip_bulk": 80, "remove": 20}, "tokens": 100},
        {"episode": "find-2a", "levels": {"strip_bulk": 90}, "tokens": 90},
    ]
    summary = {"input_tokens": 900, "output_tokens": 60}
    budget = {"evicted_tokens": 190, "evicted": evicted, "unmet": None, "summary": summary}
    step = {"receipt": {"prompt_tokens": 7, "computed_tokens": 5}, "operations": [], "budget": budget}
    turn = read_turn(step, 0.5, {"find-1a": "a b c", "find-2a": "d"}, Words())
    assert (turn.evicted, turn.markers, turn.summary) == (190, 5, (900, 60))


def made(prompt: int, **changed: Any) -> ConversationTurn:
    counts = {"prompt_tokens": prompt, "kept_tokens": prompt - 1, "moved_tokens": 0, "computed_tokens": 1}
    return ConversationTurn(counts | changed, seconds=0.1)


@pytest.mark.parametrize(("prompts", "index"), [((5,), 0), ((5, 6), 0), ((5, 6, 3), 2), ((9, 3, 4), 1)])
def test_a_clearing_inside_a_loop_counts_for_the_completion_whose_prompt_got_shorter(
    prompts: tuple[int, ...], index: int
) -> None:
    """Else a stock engine is sent what was shown afterwards in place of what was asked."""
    assert cleared_at([made(prompt) for prompt in prompts]) == index


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ([made(50)], "1 of 2 turns"),
        ([made(50), made(61)], "61 tokens, the budget is 60"),
        ([made(50), replace(made(60), is_unmet=True)], "60 tokens, the budget is 60"),
        ([made(50), made(60, kept_tokens=1)], "does not add up"),
        ([made(50), made(60, precomputed_tokens=60)], "does not add up"),
    ],
)
def test_a_run_that_went_wrong_is_not_reported(turns: list[ConversationTurn], says: str) -> None:
    trace = Trace(tuple(Exchanged(("said",), None) for _ in range(2)), {})
    run = ConversationRun("name", {"budget": {"max_tokens": 60}}, turns=[made(50), made(60)])
    assert check_run(run, trace) == []
    run.turns = turns
    assert [says in failure for failure in check_run(run, trace)] == [True]
    run.failures.append("an orphan")
    assert check_run(run, trace)[0] == "an orphan"
