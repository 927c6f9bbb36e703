"""`bench budget` without an engine: the conversation it plays, the gates of its courses, and what it reports."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from acmserve.bench.agent.scripted_agent import Exchanged, Trace, make_trace, prompt_pieces
from acmserve.bench.budget.main import as_report, as_table
from acmserve.bench.budget.run import MAX_TOKENS, PLANS, Course, Turn, as_turn, check_course, orphans
from acmserve.bench.harness.library_text import Library, cut, read_library
from acmserve.bench.harness.options import as_json
from acmserve.context.episodes.delimiter import Scope, run_delimiter
from acmserve.context.episodes.episode import Kind

NEW = [500, 300, 200]
MOVES = next(plan for plan in PLANS if plan.name == "cwl-moves")


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
    """Every call of `delimiter` is valid; acts depend on explorations; nothing is active when a task is over."""
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


def test_every_turn_has_its_piece_of_the_prompt(trace: Trace) -> None:
    pieces = prompt_pieces(trace, [["Done."]] * trace.num_turns)
    assert len(pieces) == trace.num_turns
    assert [message["role"] for message in pieces[0]] == ["system", "user"]
    users = [message["content"] for piece in pieces for message in piece if message["role"] == "user"]
    assert users == [request.asked for request in trace.requests if request.asked is not None]
    assert pieces[-1] == [
        {"role": "assistant", "content": trace.requests[-1].said[0]},
        {"role": "tool", "content": "Done."},
    ]


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
    step = {"receipt": {"prompt_tokens": 7, "computed_tokens": 5}, "operations": [{"result": "ok"}], "budget": budget}
    turn = as_turn(step, 0.5, {"find-1a": "a b c", "find-2a": "d"}, Words())
    assert (turn.evicted, turn.markers, turn.summary) == (190, 5, (900, 60))
    assert turn.results == ["ok"]


def course() -> Course:
    """Three turns with moves; the last one evicts 400 tokens and leaves 50 of a note."""
    turns = [
        made_turn(prompt=500, computed=500),
        made_turn(prompt=800, computed=300),
        replace(made_turn(prompt=650, computed=260, moved=200), evicted=400, markers=50),
    ]
    return Course(MOVES, turns)


def made_turn(prompt: int, computed: int, moved: int = 0) -> Turn:
    kept = prompt - computed - moved
    counts = {"prompt_tokens": prompt, "kept_tokens": kept, "moved_tokens": moved, "computed_tokens": computed}
    return Turn(counts, seconds=0.1, results=[])


def trace_of_three() -> Trace:
    return Trace(tuple(Exchanged(("said",), None) for _ in range(3)), {})


def test_a_good_course_passes_and_says_what_it_costs() -> None:
    good = course()
    assert check_course(good, trace_of_three(), NEW) == []
    assert good.computed_per_new(NEW) == pytest.approx(260 / 250)
    report = as_report("tiny", trace_of_three(), [good], NEW, [])
    assert report["courses"][0]["total_computed_tokens"] == 1060
    assert report["courses"][0]["turns"]["evicted_tokens"] == [0, 0, 400]
    assert "seconds" not in report["courses"][0]["turns"]
    assert "gate green" in as_table(report)[-1]


@pytest.mark.parametrize(
    ("number", "changed", "reason"),
    [
        (1, {"receipt": {**made_turn(800, 300).receipt, "kept_tokens": 1}}, "does not add up"),
        (1, {"receipt": made_turn(900, 400).receipt}, "400 new tokens, the trace has 300"),
        (2, {"receipt": made_turn(MAX_TOKENS + 1, 200).receipt}, "the budget is 6000"),
        (2, {"is_unmet": True}, "the budget is 6000"),
        (2, {"receipt": made_turn(650, 301).receipt}, "1.20 tokens computed for each new one"),
        (2, {"receipt": made_turn(650, 200).receipt, "summary": (100, 20)}, "1.28 tokens computed for each new one"),
    ],
)
def test_gates_trip_on_bad_numbers(number: int, changed: dict[str, Any], reason: str) -> None:
    bad = course()
    bad.turns[number] = replace(bad.turns[number], **changed)
    failures = check_course(bad, trace_of_three(), NEW)
    assert any(reason in failure for failure in failures), failures


def test_a_course_that_ended_early_is_red() -> None:
    short = course()
    del short.turns[-1]
    short.failures.append("request 2 was answered with nothing")
    failures = check_course(short, trace_of_three(), NEW)
    assert failures == ["request 2 was answered with nothing", f"{MOVES.title}: 2 of 3 turns"]


def test_a_red_report_has_reasons_and_no_numbers() -> None:
    report = as_report("tiny", trace_of_three(), [course()], NEW, ["a receipt does not add up"])
    assert report["courses"] == []
    assert as_table(report) == ["GATE RED, so nothing is reported:", "  a receipt does not add up"]


def test_the_json_has_a_line_for_each_list() -> None:
    report = as_report("smollm2", trace_of_three(), [course()], NEW, [])
    text = as_json(report)
    assert json.loads(text) == report
    assert '"new_tokens": [500, 300, 200]' in text
    assert '"seconds": [0.1, 0.1, 0.1]' in text


def test_courses_differ_in_one_thing_at_a_time() -> None:
    cwl = [plan for plan in PLANS if plan.policy == "cwl"]
    assert [plan.name for plan in cwl] == ["cwl-single", "cwl-batched", "cwl-moves"]
    for one, other in pairwise(cwl):
        differing = [name for name in ("fidelity", "low_watermark") if getattr(one, name) != getattr(other, name)]
        assert len(differing) == 1
