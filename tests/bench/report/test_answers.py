"""The page's section about answers, and what nobody measured: both are made of the records and files that are there."""

from __future__ import annotations

import json

import pytest

from acmserve.bench.report.decision import NUMBERS, first_screen
from acmserve.bench.report.screen.never import NEVER
from acmserve.bench.report.sections.answers import ANSWERS, SEEDS, moved_answers
from acmserve.bench.report.sources import find_sources
from acmserve.bench.tasks.run import TOKEN_EXACT
from tests.support.docs.pages import ROOT
from tests.support.recorded.ledger import committed_ledger

RESULTS = ROOT / "benchmarks/results"
ECHOES, HEADS = "`auto` (echoes alone)", "`auto` (heads, too)"


def test_answers_of_two_rules_are_counted_apart() -> None:
    """As long as all files are of one rule they are counted together."""
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in SEEDS}
    heads = [{"name": "repair-128-echoes"}]
    for report in reports.values():
        report["variants"] = heads
    (section,) = (one for one in ANSWERS if one.files == SEEDS)
    assert callable(section.answer)
    every = moved_answers(reports.values())
    told = section.answer(reports)
    assert told.startswith(f"Where {HEADS} moved, it lost {every.lost} right answers and won {every.won} wrong")
    (counted,) = (note(reports) for note in section.notes if callable(note) and "answers were" in note(reports))
    assert counted.startswith(
        f"Over three seeds {HEADS} moved something in {every.num_moved_cases} of {every.num_cases} folds."
    )
    assert f"The other {every.num_exact} of {every.num_questions} answers were computed exactly." in counted
    for name in SEEDS[1:]:
        reports[name]["variants"] = [*heads, {"name": TOKEN_EXACT.name}]
    heads_one, *echoes_two = reports.values()
    told = section.answer(reports)
    (counted,) = (note(reports) for note in section.notes if callable(note) and "answers were" in note(reports))
    for seeds, rule, some in (("two seeds", ECHOES, echoes_two), ("one seed", HEADS, [heads_one])):
        found = moved_answers(some)
        assert f"lost {found.lost} {'and' if some == [heads_one] else 'right answers and'} won {found.won}" in told
        assert f"Over {seeds} {rule} moved something in {found.num_moved_cases} of {found.num_cases} folds." in counted
    rows = list(section.tables[2].rows(reports))
    assert [row[1] for row in rows] == ["heads, too", "echoes alone", "echoes alone"]
    assert [row[0] for row in section.tables[0].rows(reports)][2] == HEADS


def test_no_page_says_of_these_files_whether_their_rule_ships() -> None:
    """They tell what was repaired, and have no digest of the rule. `bench repairs` alone has one."""
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in SEEDS}
    assert not any("rule" in report for report in reports.values())
    (section,) = (one for one in ANSWERS if one.files == SEEDS)
    assert callable(section.answer)
    notes = [note if isinstance(note, str) else note(reports) for note in section.notes]
    cells = [cell for table in section.tables for row in table.rows(reports) for cell in row]
    told = " ".join(map(str, [section.answer(reports), *notes, *cells]))
    assert ("today" in told, "older" in told) == (False, False)
    assert "So they do not tell whether it ships." in told


def test_tasks_in_which_auto_moves_nothing_are_named_by_their_records() -> None:
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in SEEDS}
    (section,) = (one for one in ANSWERS if one.files == SEEDS)
    for name, variant in zip(SEEDS, ("repair-128-echoes", "repair-128-echoes", TOKEN_EXACT.name), strict=True):
        reports[name]["variants"] = [{"name": variant}]
        for record in reports[name]["records"]:
            record["variants"]["auto"]["moved_tokens"] = int(record["task"] not in ("pi-llm", "aggregation"))
    told = "\n".join(note if isinstance(note, str) else note(reports) for note in section.notes)
    still = "moves nothing in 2 of 5 tasks: PI-LLM, aggregation"
    assert f"{ECHOES} {still}. {HEADS} {still}. There it is `exact`." in told
    for record in reports[SEEDS[2]]["records"]:
        record["variants"]["auto"]["moved_tokens"] = 1
    told = "\n".join(note if isinstance(note, str) else note(reports) for note in section.notes)
    assert f"{ECHOES} moves nothing in" not in told
    assert f"{HEADS} {still}." in told


def test_what_was_never_measured_is_told_until_it_is() -> None:
    rows = committed_ledger()
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text()) for one in NUMBERS for name in one.files}
    rows.pop("trace-open", None)
    (text,) = (text for name, text in NEVER if name == "trace-open")
    assert any(line.startswith("**Never measured:** ") and text in line for line in first_screen(reports, rows))
    measured = rows | {"trace-open": rows["trace"]}
    assert not any(text in line for line in first_screen(reports, measured))
    assert {name for name, _ in NEVER if name} <= find_sources().keys()


@pytest.mark.parametrize("name", ["calibrate", "precompute-paired-thoughts"])
def test_what_was_asked_for_and_never_recorded_is_told(name: str) -> None:
    rows = {other: row for other, row in committed_ledger().items() if other != name}
    reports = {one: json.loads((RESULTS / f"{one}.json").read_text()) for number in NUMBERS for one in number.files}
    (text,) = (text for other, text in NEVER if other == name)
    (told,) = (line for line in first_screen(reports, rows) if line.startswith("**Never measured:** "))
    assert text in told
