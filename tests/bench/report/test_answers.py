"""The page's section about answers, and what nobody measured: both are made of the records and files that are there."""

from __future__ import annotations

import json

import pytest

from acmserve.bench.report.decision import NUMBERS, first_screen
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.screen.never import NEVER
from acmserve.bench.report.sections.answers import ANSWERS, SEEDS, moved_answers
from acmserve.bench.report.sources import find_sources
from acmserve.bench.tasks.run import TOKEN_EXACT
from tests.support.docs.pages import ROOT

RESULTS = ROOT / "benchmarks/results"


def test_answers_of_two_rules_are_counted_apart() -> None:
    """As long as all files are of one rule they are counted together."""
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in SEEDS}
    older = [{"name": "repair-128-echoes"}]
    for report in reports.values():
        report["variants"] = older
    (section,) = (one for one in ANSWERS if one.files == SEEDS)
    assert callable(section.answer)
    every = moved_answers(reports.values())
    told = section.answer(reports)
    assert told.startswith(f"Where an older `auto` moved, it lost {every.lost} right answers and won {every.won} wrong")
    (counted,) = (note(reports) for note in section.notes if callable(note) and "answers were" in note(reports))
    assert counted.startswith(
        f"Over three seeds an older `auto` moved something in {every.num_moved_cases} of {every.num_cases} folds."
    )
    assert f"The other {every.num_exact} of {every.num_questions} answers were computed exactly." in counted
    for name in SEEDS[1:]:
        reports[name]["variants"] = [*older, {"name": TOKEN_EXACT.name}]
    older_one, *todays_two = reports.values()
    told = section.answer(reports)
    (counted,) = (note(reports) for note in section.notes if callable(note) and "answers were" in note(reports))
    for seeds, rule, some in (("two seeds", "`auto`", todays_two), ("one seed", "an older `auto`", [older_one])):
        found = moved_answers(some)
        assert f"lost {found.lost} {'and' if some == [older_one] else 'right answers and'} won {found.won}" in told
        assert f"Over {seeds} {rule} moved something in {found.num_moved_cases} of {found.num_cases} folds." in counted
    rows = list(section.tables[2].rows(reports))
    assert [row[1] for row in rows] == ["an older one", "today's", "today's"]
    assert [row[0] for row in section.tables[0].rows(reports)][2] == "`auto` (an older rule)"


def test_tasks_in_which_auto_moves_nothing_are_named_by_their_records() -> None:
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in SEEDS}
    (section,) = (one for one in ANSWERS if one.files == SEEDS)
    for name, variant in zip(SEEDS, ("repair-128-echoes", "repair-128-echoes", TOKEN_EXACT.name), strict=True):
        reports[name]["variants"] = [{"name": variant}]
        for record in reports[name]["records"]:
            record["variants"]["auto"]["moved_tokens"] = int(record["task"] not in ("pi-llm", "aggregation"))
    told = "\n".join(note if isinstance(note, str) else note(reports) for note in section.notes)
    still = "moves nothing in 2 of 5 tasks: PI-LLM, aggregation"
    assert f"`auto` {still}. An older rule {still}. There it is `exact`." in told
    for record in reports[SEEDS[2]]["records"]:
        record["variants"]["auto"]["moved_tokens"] = 1
    told = "\n".join(note if isinstance(note, str) else note(reports) for note in section.notes)
    assert "`auto` moves nothing in" not in told
    assert f"An older rule {still}." in told


def test_what_was_never_measured_is_told_until_it_is() -> None:
    rows = read_ledger()
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text()) for one in NUMBERS for name in one.files}
    rows.pop("trace-open", None)
    (text,) = (text for name, text in NEVER if name == "trace-open")
    assert any(line.startswith("**Never measured:** ") and text in line for line in first_screen(reports, rows))
    measured = rows | {"trace-open": rows["trace"]}
    assert not any(text in line for line in first_screen(reports, measured))
    assert {name for name, _ in NEVER if name} <= find_sources().keys()


@pytest.mark.parametrize("name", ["calibrate", "precompute-paired-thoughts"])
def test_what_was_asked_for_and_never_recorded_is_told(name: str) -> None:
    rows = {other: row for other, row in read_ledger().items() if other != name}
    reports = {one: json.loads((RESULTS / f"{one}.json").read_text()) for number in NUMBERS for one in number.files}
    (text,) = (text for other, text in NEVER if other == name)
    (told,) = (line for line in first_screen(reports, rows) if line.startswith("**Never measured:** "))
    assert text in told
