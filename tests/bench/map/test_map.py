"""`bench map` without an engine: its corpus, its questions, the scripted agent, the gates and the report."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.harness.options import as_json
from acmserve.bench.map.corpus import LABELS, USERS, Corpus, make_corpus, make_questions, score
from acmserve.bench.map.main import WAYS, as_report
from acmserve.bench.map.oracle import Known, ToolUse, answer_text, read_answer
from acmserve.bench.map.run import (
    BUDGET,
    EVOLVE_STEPS,
    AnsweredQuestion,
    MapRun,
    check_map_run,
    check_together,
    make_runs,
)
from acmserve.context.maps.answers import read_charted, read_distilled
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.text import render_map
from acmserve.context.maps.update import Learned, learn

QUESTIONS = make_questions()
as_table = told_by(WAYS)
RECORDED = json.loads((Path(__file__).parents[3] / "benchmarks/results/map.json").read_text(encoding="utf-8"))


class Words:
    """A token is a word."""

    def starts(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\S+", text)]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus()


def answered(corpus: Corpus, number: int, map_text: str) -> tuple[int, str, Known]:
    """Steps, answer and what the agent knows then."""
    known = Known()
    known.read_map(map_text)
    for num_steps in range(1, 10):
        step = known.step(QUESTIONS[number])
        if not isinstance(step, ToolUse):
            return num_steps, step, known
        known.read_result(step, corpus.call(step.name, step.arguments))
    raise AssertionError(f"{QUESTIONS[number].text} was not answered in {num_steps} steps")


def taught(corpus: Corpus, budget: int = BUDGET) -> tuple[list[int], list[str], ContextMap]:
    """Steps and answers with a map that learns as on the server, and the map."""
    context_map, rules = ContextMap(budget=budget, evolve_steps=EVOLVE_STEPS), MapRules(Words())
    steps, answers = [], []
    for number, question in enumerate(QUESTIONS):
        num_steps, answer, known = answered(corpus, number, render_map(context_map))
        steps.append(num_steps)
        answers.append(answer)
        if number < EVOLVE_STEPS:
            distilled, charted = known.update(question)
            assert list(json.loads(distilled).get("item_tags", {})) == [item.item_id for item in context_map.items]
            update = Learned(read_distilled(distilled, context_map), read_charted(charted), context_map)
            context_map = learn(context_map, update, rules, 0.0)
    return steps, answers, context_map


def test_the_corpus_is_the_same_each_time_and_every_record_has_one_label(corpus: Corpus) -> None:
    assert make_corpus().digest == corpus.digest
    for record in corpus.records:
        found = [label for label, cues in LABELS.items() if any(cue in record.text for cue in cues)]
        assert found == [record.label], record
    assert set(USERS) == {record.user for record in corpus.records}


def test_no_question_is_decided_by_a_tie(corpus: Corpus) -> None:
    for question in QUESTIONS:
        if question.kind in ("most", "least"):
            records = [record for record in corpus.records if question.within in (record.user, record.date[:7], "")]
            named = {"label": [r.label for r in records], "user": [r.user for r in records]}
            counts = Counter(named.get(question.subject, [r.date[:7] for r in records]))
            numbers = sorted((counts[key] for key in question.keys), reverse=question.kind == "most")
            assert numbers[0] != numbers[1], question


def test_the_score_of_a_number_falls_with_its_error() -> None:
    assert score("48", "48") == 1
    assert score("50", "48") == pytest.approx(0.75**2)
    assert score("many", "48") == 0
    assert score("Delay ", "delay") == 1
    assert score("fares", "delay") == 0


def test_the_agent_is_right_with_and_without_a_map_and_needs_fewer_steps_with_it(corpus: Corpus) -> None:
    truths = [corpus.truth(question) for question in QUESTIONS]
    alone = [answered(corpus, number, "") for number in range(len(QUESTIONS))]
    assert [answer for _, answer, _ in alone] == truths
    steps, answers, context_map = taught(corpus)
    assert answers == truths
    assert steps[0] == alone[0][0]
    assert all(with_map < without for with_map, (without, _, _) in zip(steps[1:], alone[1:], strict=True))
    assert all(not note.refused for change in context_map.history for note in change.operations)
    assert {item.section.slug for item in context_map.items} == {"cr", "cu", "dc", "ps", "rr"}


def test_what_the_budget_evicted_is_found_out_again(corpus: Corpus) -> None:
    wide, _, _ = taught(corpus)
    narrow, answers, context_map = taught(corpus, budget=130)
    assert any(change.evicted for change in context_map.history)
    assert sum(wide) < sum(narrow)
    assert answers == [corpus.truth(question) for question in QUESTIONS]


def test_an_answer_is_read_back() -> None:
    assert read_answer(answer_text(QUESTIONS[0], "48")) == "48"


def receipt(prompt: int, computed: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "kept_tokens": prompt - computed,
        "moved_tokens": 0,
        "computed_tokens": computed,
    }


def made_run(corpus: Corpus, name: str = "reuse") -> MapRun:
    """Two questions with one request each. The map changes between them."""
    asked = [
        AnsweredQuestion([receipt(2000, 2000)], corpus.truth(QUESTIONS[0]), version=0, map_tokens=90),
        AnsweredQuestion([receipt(2100, 400)], corpus.truth(QUESTIONS[1]), version=1, map_tokens=200),
    ]
    made = next(run for run in make_runs() if run.name == name)
    made.asked, made.map_text = asked, "a map"
    return made


def test_a_good_course_passes_and_is_reported(corpus: Corpus) -> None:
    good = made_run(corpus)
    assert check_map_run(good, corpus, QUESTIONS[:2]) == []
    report = as_report([good], corpus, QUESTIONS[:2])
    [row] = report["runs"]
    assert (row["num_iterations"], row["total_computed_tokens"], row["score"]) == (2, 2400, 1)
    assert json.loads(as_json(report)) == report
    assert any(good.title in line and "2,400" in line for line in as_table(report))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"receipts": [receipt(2100, 400) | {"kept_tokens": 1}]}, "does not add up"),
        ({"receipts": [receipt(2100, 100 + BUDGET + 65)]}, "expected"),
        ({"version": 0}, "expected"),
        ({"answer": "Nobody"}, "Nobody"),
    ],
)
def test_gates_trip_on_bad_numbers(corpus: Corpus, changed: dict[str, Any], reason: str) -> None:
    bad = made_run(corpus)
    bad.asked[1] = replace(bad.asked[1], **changed)
    failures = check_map_run(bad, corpus, QUESTIONS[:2])
    assert len(failures) == 1
    assert reason in failures[0]
    report = as_report([bad], corpus, QUESTIONS[:2])
    assert report["runs"] == []
    assert as_table(report)[0].startswith("GATE RED")


def test_runs_have_to_be_the_same_work(corpus: Corpus) -> None:
    one, other = made_run(corpus), made_run(corpus)
    assert check_together([one, other]) == []
    other.asked[1].receipts.append(receipt(2200, 100))
    other.map_text = "another map"
    assert len(check_together([one, other])) == 2
    alone = made_run(corpus, "none-exact")
    alone.update_tokens = (5, 0)
    assert check_together([one, alone]) == []
    assert any("in no receipt" in failure for failure in check_map_run(alone, corpus, QUESTIONS[:2]))


def test_the_recorded_report_reads(corpus: Corpus) -> None:
    assert RECORDED["corpus"]["digest"] == corpus.digest
    assert RECORDED["questions"] == [question.text for question in QUESTIONS]
    lines = as_table(RECORDED)
    for run in RECORDED["runs"]:
        assert any(run["title"] in line and f"{run['total_computed_tokens']:,}" in line for line in lines), run["name"]
