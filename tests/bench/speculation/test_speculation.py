"""What `bench speculation` asks, and how it judges made records: each bar is met by one and missed by another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.edit.kinds import EditSizes
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.sections.renewed import renewed
from acmserve.bench.report.sections.thoughts import DRAFTED_RESULT as RESULT
from acmserve.bench.report.sections.thoughts import SPECULATION
from acmserve.bench.speculation.cases import KINDS, ORDINARY, SUPERSEDED, make_case
from acmserve.bench.speculation.run import DECODE, DRAFTED, EXACT, PREFILL, TimedAnswer, find_failures, num_same
from acmserve.bench.speculation.table import ANSWERS_TABLE, BARS_TABLE, DRAFTS_TABLE, as_report, told_of_whole_drafts
from tests.support.docs.figures import read_result

SIZES = {"context_tokens": 5500, "answer_tokens": 200, "draft_chunk_tokens": 0}


class Words:
    """A token is a word."""

    def starts(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\S+", text)]


def row(kind: str, drafted_seconds: float, accepted: int = 95, **more: Any) -> dict[str, Any]:
    """Prefill takes 4 s and decode 6 s."""
    made = {
        "kind": kind,
        "failures": [],
        "exact_seconds": 10.1,
        "drafted_seconds": drafted_seconds,
        "prefill_seconds": 4.0,
        "decode_seconds": 6.0,
        "num_same": 200,
        "num_tokens": 200,
        "drafted_tokens": 100,
        "accepted_tokens": accepted,
        "reason": None,
    }
    return made | more


def report_of(drafted_seconds: float, accepted: int = 95, **more: Any) -> dict[str, Any]:
    rows = [row(ORDINARY, drafted_seconds, accepted, **more), row(SUPERSEDED, 11.0, 3)]
    return as_report(rows * 5, SIZES)


def met(report: dict[str, Any]) -> list[bool]:
    return [bar["is_met"] for bar in report["bars"]]


def test_a_draft_makes_the_longer_out_of_the_sum() -> None:
    report = report_of(6.6)
    ordinary, superseded = report["kinds"]
    assert ordinary["over_longer"] == {"median": 1.1, "interval": [1.1, 1.1]}
    assert ordinary["over_sum"]["median"] == 0.66
    assert ordinary["exact_over_sum"]["median"] == 1.01
    accepted = {"median": 95, "least": 95, "most": 95, "median_share": 0.95}
    assert (ordinary["accepted"], ordinary["num_verified"], ordinary["num_cases"]) == (accepted, 5, 5)
    assert superseded["over_exact"]["median"] == pytest.approx(11 / 10.1, abs=1e-4), "a loss is told"
    assert met(report) == [True, True]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (report_of(7.3), [False, True]),
        (report_of(6.6, accepted=89), [True, False]),
        (report_of(6.6, 0, drafted_tokens=0, reason="edit: no long text stands behind one"), [False, False]),
    ],
)
def test_each_bar_can_be_missed(report: dict[str, Any], expected: list[bool]) -> None:
    """The controls: a slow answer, drafts that are rejected, and answers that were never drafted."""
    assert met(report) == expected
    assert any(line.endswith("missed") for line in told_by(BARS_TABLE)(report))


def test_superseded_lines_meet_no_bar_and_are_told() -> None:
    lines = told_by(BARS_TABLE, ANSWERS_TABLE, DRAFTS_TABLE)(report_of(6.6))
    assert any(line.startswith("superseded lines") and "1.09" in line for line in lines)
    assert any(line.startswith("superseded lines") and "3 (3 to 3)" in line for line in lines)


def cases_of(kind: str, *accepted: int, seconds: float = 11.0) -> list[dict[str, Any]]:
    return [row(kind, seconds, num, drafted_tokens=50) for num in accepted]


def test_one_case_of_five_does_not_stand_for_all() -> None:
    """The shares of all tokens together are 28 and 9 %. By case ordinary text is rejected as early."""
    report = as_report([*cases_of(ORDINARY, 2, 0, 15, 4, 50), *cases_of(SUPERSEDED, 6, 3, 3, 5, 6)], SIZES)
    ordinary, superseded = (kind["accepted"] for kind in report["kinds"])
    assert ordinary == {"median": 4, "least": 0, "most": 50, "median_share": 0.08}
    assert superseded == {"median": 5, "least": 3, "most": 6, "median_share": 0.1}
    accepted = report["bars"][1]
    assert (accepted["value"], accepted["is_met"]) == (0.08, False)
    assert [cells[3] for cells in DRAFTS_TABLE.rows(report)] == ["4 (0 to 50)", "5 (3 to 6)"]


def test_what_a_draft_took_that_was_accepted_whole_is_told() -> None:
    rows = [*cases_of(ORDINARY, 4, 50, 50, seconds=10.6), *cases_of(SUPERSEDED, 5)]
    rows[1]["drafted_seconds"] = 10.9
    told = told_of_whole_drafts(as_report(rows, SIZES))
    assert told.startswith(
        "Drafts that were accepted whole took 10.9 s and 10.6 s, where `exact` took 10.1 s and 10.1 s."
    )
    assert told.endswith("So acceptance alone is not what a draft lacks here.")
    assert told_of_whole_drafts(as_report(cases_of(ORDINARY, 50, seconds=9.0) + rows[3:], SIZES)) == (
        "A draft that was accepted whole took 9.0 s, where `exact` took 10.1 s."
    )
    assert told_of_whole_drafts(as_report([*cases_of(ORDINARY, 4), *cases_of(SUPERSEDED, 5)], SIZES)) == ""


def test_a_recorded_result_is_told_by_its_cases() -> None:
    """An older file has a share of all tokens together, which no page shows."""
    report = as_report([*cases_of(ORDINARY, 2, 50), *cases_of(SUPERSEDED, 3, 4)], SIZES)
    older = report | {"kinds": [{"kind": ORDINARY, "accepted_share": 0.52}], "bars": []}
    assert renewed(RESULT, older) == report
    recorded = read_result(RESULT)
    again = renewed(RESULT, recorded)
    assert again["kinds"]
    assert renewed(RESULT, recorded | {"kinds": [], "bars": []}) == again


def answers(**other: TimedAnswer) -> dict[str, TimedAnswer]:
    def made(tokens: list[int], computed: int, moved: int = 0) -> TimedAnswer:
        kept = 3600 - computed - moved
        counts = {"prompt_tokens": 3600, "kept_tokens": kept, "moved_tokens": moved, "computed_tokens": computed}
        return TimedAnswer(tokens, 0.1, 1.0, counts)

    found = {EXACT: made([1, 2, 3], 3100), DRAFTED: made([1, 2, 3], 3100)}
    return found | {PREFILL: made([1], 3100), DECODE: made([1, 2, 3], 100)} | other


RECEIPT = {"prompt_tokens": 9, "kept_tokens": 0, "moved_tokens": 0, "computed_tokens": 9}
LOST = {"prompt_tokens": 9, "kept_tokens": 1, "moved_tokens": 0, "computed_tokens": 9}
MOVED = {"prompt_tokens": 9, "kept_tokens": 0, "moved_tokens": 9, "computed_tokens": 0}
AGAIN = {"prompt_tokens": 900, "kept_tokens": 0, "moved_tokens": 0, "computed_tokens": 900}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, ""),
        ({DRAFTED: TimedAnswer([1, 2, 4], receipt=RECEIPT)}, "drafted gave other tokens than exact, from token 2 on"),
        ({DRAFTED: TimedAnswer([1, 2], receipt=RECEIPT)}, "drafted gave other tokens than exact, from token 2 on"),
        ({PREFILL: TimedAnswer([5], receipt=RECEIPT)}, "prefill gave token [5], exact [1]"),
        ({DRAFTED: TimedAnswer([1, 2, 3], receipt=MOVED)}, "drafted moved KV"),
        ({DRAFTED: TimedAnswer([1, 2, 3], receipt=LOST)}, "drafted: the receipt does not add up"),
        ({DECODE: TimedAnswer([1, 2, 3], receipt=AGAIN)}, "decode computed 900 tokens of its prompt"),
    ],
)
def test_the_gate(other: dict[str, TimedAnswer], says: str) -> None:
    failures = find_failures(answers(**other), 3)
    assert len(failures) == bool(says)
    assert all(failure.startswith(says) for failure in failures)


def test_a_red_case_leaves_no_number() -> None:
    report = as_report([row(ORDINARY, 6.6, failures=["exact moved KV"]), row(SUPERSEDED, 9.0)], SIZES)
    assert (report["kinds"], report["bars"], report["cases"]) == ([], [], [])
    assert told_by(BARS_TABLE)(report)[0] == "GATE RED, so nothing is reported:"


def test_cases_fold_what_they_say_and_have_texts_of_their_own() -> None:
    library, sizes = read_library(), EditSizes()
    texts = set()
    for kind in KINDS:
        for number in range(3):
            case = make_case(kind, number, library, Words(), sizes)
            read, asked = (message[0]["content"] for message in (case.read, case.asked))
            texts.add(asked)
            assert 0.85 * sizes.folded < len(read.split()) - len(asked.split()) <= sizes.folded
            assert abs(len(read.split()) - sizes.context) < 0.1 * sizes.context
            rest = asked.split("\n")[-40:]
            assert read.split("\n")[-40:] == rest, "what stands behind the fold is the same"
    assert len(texts) == 6
    assert num_same([1, 2, 3], [1, 2]) == 2


def test_the_section_stands_on_the_page_once_it_was_measured(tmp_path: Path) -> None:
    assert sections_of(SPECULATION, tmp_path, read_ledger(tmp_path)) == []
    (tmp_path / f"{RESULT}.json").write_text(json.dumps(report_of(6.6)), encoding="utf-8")
    shown = "\n".join(sections_of(SPECULATION, tmp_path, read_ledger(tmp_path)))
    assert "takes 0.65 times as long as one without a draft. Over superseded lines it takes 1.09 times" in shown
    assert "rejected early" not in shown
    assert "| drafted answer over the longer of prefill and decode, median | 1.10 | at most 1.2 | met |" in shown
