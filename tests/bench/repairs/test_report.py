"""What `bench repairs` sums up and prints, from records made by hand: the floor, harm beside reuse, and the control."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from acmserve.bench.harness.markdown_text import MET, MISSED, UNDECIDED, points
from acmserve.bench.repairs import thoughts
from acmserve.bench.repairs.cases import ASKED, LATER, PRECISE
from acmserve.bench.repairs.recorded import recorded_harm, recorded_kinds, recorded_mix, recorded_row
from acmserve.bench.repairs.summary import (
    ANY,
    LEAST_ALIKE,
    MIN_CONTROL_CASES,
    MIX,
    SEED,
    control,
    control_failures,
    harm,
    mix_end,
    mix_of,
    summarise,
    verdict,
)
from acmserve.bench.repairs.table import as_table
from acmserve.bench.repairs.ways import AUTO, CONTROL, EXACT, REUSE
from acmserve.bench.report.sections.repairs import REPAIRS
from acmserve.bench.tasks.floor import PARAPHRASED, above_floor, at_floor
from tests.support.docs.figures import read_result

ROLES = [ASKED, LATER, LATER, PARAPHRASED]
NUM = MIN_CONTROL_CASES


def row(kl: list[float], right: list[float], moved: int) -> dict[str, Any]:
    return {"kl": kl, "right": right, "moved_tokens": moved}


def record(task: str, seed: int, exact: float = 1.0, asked: float = 1.0, later: float = 0.0) -> dict[str, Any]:
    """`asked`, `later`: what the control answers right. `reuse` answers no question that it has not moved right."""
    return {
        "task": task,
        "setting": "s",
        "seed": seed,
        "roles": ROLES,
        "suffix_tokens": 200,
        "variants": {
            EXACT.name: row([0.0] * 4, [exact] * 4, 0),
            REUSE.name: row([0.5] * 4, [0.0, 0.0, 0.5, 0.0], 200),
            CONTROL.name: row([0.0, 0.9, 0.9, 0.1], [asked, later, later, asked], 180),
            AUTO.name: row([0.02] * 4, [1.0, 1.0, 1.0, 0.0 if seed == 0 else 1.0], 100),
        },
    }


def test_a_size_that_exact_does_not_answer_is_out_whatever_the_others_did() -> None:
    records = [record("a", 0), record("b", 0, exact=0.1), record("b", 1, exact=0.2)]
    assert at_floor(records) == {"b s": 0.15}
    assert [one["task"] for one in above_floor(records)] == ["a"]


def test_a_row_stands_beside_exact_for_each_kind_of_question() -> None:
    records = [record("a", number) for number in range(4)]
    rows = {(r["task"], r["way"], r["role"]): r for r in summarise(records, mix_of(records, 2), 0)}
    auto = rows["a", AUTO.name, ANY]
    assert (auto["num_cases"], auto["num_questions"], auto["moved_share"]) == (4, 16, 0.5)
    assert (auto["kl"], auto["right_beside_exact"]) == (0.02, -0.0625)
    assert rows["a", AUTO.name, PARAPHRASED]["right_beside_exact"] == -0.25
    assert rows["a", AUTO.name, LATER]["right_beside_exact"] == 0.0
    assert rows[MIX, AUTO.name, ANY]["num_cases"] == 2
    assert rows["a", REUSE.name, ANY]["moved_share"] == 1.0


def test_a_kind_of_question_that_exact_does_not_answer_is_in_no_mean_over_kinds() -> None:
    records = [record("a", number) for number in range(4)]
    for one in records:
        one["variants"][EXACT.name]["right"][3] = 0.0
        one["variants"][AUTO.name]["kl"] = [0.06, 0.06, 0.06, 0.0]
        one["variants"][AUTO.name]["right"] = [1.0, 1.0, 0.7, 0.0]
    rows = {(r["way"], r["role"]): r for r in summarise(records, mix_of(records, 9), 0) if r["task"] == MIX}
    auto = rows[AUTO.name, ANY]
    assert (auto["num_cases"], auto["num_questions"], auto["kl"], auto["right_beside_exact"]) == (4, 12, 0.06, -0.1)
    assert rows[AUTO.name, PARAPHRASED]["kl"] == 0.0, "it has a row of its own"
    assert rows[AUTO.name, PARAPHRASED]["num_questions"] == 4


def test_the_mix_ends_behind_the_last_seed_that_every_family_has() -> None:
    records = [record("a", number) for number in range(3)] + [record(PRECISE[0], number) for number in range(9)]
    assert mix_end(records) == 3
    assert mix_end(records[3:]) == 9
    assert mix_end([]) == 0


def test_the_recorded_run_is_told_by_its_records_and_not_by_its_summary() -> None:
    """A summary that is lost changes no row."""
    report = read_result("repairs")
    bare = report | {"summary": [], "harm": {}}
    for way in (AUTO, REUSE):
        row = recorded_row(report, MIX, way.name)
        assert row == recorded_row(bare, MIX, way.name)
        assert row["num_cases"] > 0
    assert recorded_kinds(bare) == recorded_kinds(report)
    assert recorded_harm(bare) == recorded_harm(report)
    stored = {(r["task"], r["way"], r["role"]): r for r in report["summary"]}
    for role in (ASKED, LATER, PARAPHRASED):
        assert recorded_row(report, MIX, AUTO.name, role) == stored[MIX, AUTO.name, role], "of one kind nothing changes"


def test_a_recorded_run_whose_kinds_are_all_answered_is_as_its_summary_says() -> None:
    report = read_result("repairs-thoughts")
    assert recorded_kinds(report) == {}
    for row in report["summary"]:
        assert recorded_row(report, row["task"], row["way"], row["role"]) == row


@pytest.mark.parametrize(
    ("intervals", "kl", "word"),
    [
        ([[0.0, 0.0], [-0.01, 0.01]], 0.04, MET),
        ([[0.0, 0.0], [-0.01, 0.01]], 0.041, MISSED),
        ([[0.0, 0.0], [-0.02, 0.01]], 0.04, UNDECIDED),
        ([[-0.2, -0.02], [-0.02, 0.01]], 0.04, MISSED),
    ],
)
def test_a_way_is_judged_by_the_interval_of_each_kind_of_question(
    intervals: list[list[float]], kl: float, word: str
) -> None:
    """The mean alone met the bar before. A kind that misses it counts more than one that is not decided."""
    rows = [
        {"task": MIX, "way": AUTO.name, "kl": kl, "moved_share": 0.5, "num_cases": LEAST_ALIKE}
        | {"right_beside_exact": 0.0, "right_beside_exact_interval": ends}
        for ends in intervals
    ]
    assert verdict(rows, AUTO.name, MIX) == word


def test_harm_is_counted_by_question_and_by_edit() -> None:
    one = record("a", 0)
    one["variants"][AUTO.name]["kl"] = [0.7, 0.0, 0.0, 0.0]
    found = harm([one, record("a", 1)])
    assert (found["num_questions"], found["num_questions_harmed"], found["worst_question_nats"]) == (8, 1, 0.2)
    assert (found["num_edits"], found["num_edits_harmed"], found["worst_edit_nats"]) == (2, 0, -0.325)


def test_a_control_that_gains_on_its_question_and_loses_on_others_is_caught() -> None:
    records = [record("a", number) for number in range(NUM)]
    assert control_failures(records, 0) == []
    assert control(records, 0)["asked"] == 1.0
    assert control(records, 0)["later"] == -0.25
    assert verdict(summarise(records, records, 0), CONTROL.name, MIX) == MISSED


@pytest.mark.parametrize(("later", "kl", "said"), [(1.0, 0.0, "passes"), (1.0, 0.9, "gains nothing by it")])
def test_a_control_that_is_not_caught_turns_the_gate_red(later: float, kl: float, said: str) -> None:
    """As good on later questions as on its own, the control shows nothing. As good as exact, the control passes."""
    records = [record("a", number, later=later) for number in range(NUM)]
    for one in records:
        one["variants"][CONTROL.name]["kl"] = [kl] * 4
        one["variants"][REUSE.name]["right"] = [0.0, 0.0, 0.0, 0.0]
    assert any(said in failure for failure in control_failures(records, 0))
    assert control_failures(records[: NUM - 1], 0) == [], "of few cases nothing is said"


@pytest.mark.parametrize(
    ("asked", "later", "said"),
    [
        (1.0, 0.98, ""),
        (0.99, 0.98, ""),
        (0.98, 0.5, "fails on the question that it looks at (-2.0 points asked, -50.0 later, beside exact)"),
        (1.0, 0.99, "passes on later ones (+0.0 points asked, -1.0 later, beside exact)"),
    ],
)
def test_the_control_is_judged_by_its_answers_whatever_its_distance(asked: float, later: float, said: str) -> None:
    """By 0.9 nats it never passed, so this gate could not tell a control that answers everything."""
    records = [record("a", number, asked=asked, later=later) for number in range(NUM)]
    for one in records:
        one["variants"][CONTROL.name]["kl"] = [0.9] * 4
        one["variants"][REUSE.name]["right"] = [0.0, later, later, 0.0]
    found = control_failures(records, 0)
    assert len(found) == bool(said)
    assert all(said in failure for failure in found)


def test_the_recorded_control_is_caught_and_stands_beside_reuse_on_the_page() -> None:
    """Points lost on later questions are those of `reuse`: beside it the control loses nothing that is sure."""
    made = copy.deepcopy(read_result("repairs"))
    assert control_failures(recorded_mix(made), SEED) == []
    (section,) = (one for one in REPAIRS if one.files == ("repairs",))
    told = " ".join(note if isinstance(note, str) else note({"repairs": made}) for note in section.notes)
    rows = [recorded_row(made, MIX, CONTROL.name, role) for role in (ASKED, LATER)]
    asked, later = (points(row["right_beside_exact"]) for row in rows)
    assert f"Beside `exact` it has {asked} points on that question and {later} on later ones." in told
    gained = control(recorded_mix(made), SEED)
    beside = " and ".join(points(gained[role], gained[f"{role}_interval"]) for role in (ASKED, LATER))
    assert f"Beside `reuse` these are {beside}" in told
    assert "is not caught" not in told
    for one in made["records"]:
        one["variants"][CONTROL.name]["right"] = one["variants"][EXACT.name]["right"]
    told = " ".join(note if isinstance(note, str) else note({"repairs": made}) for note in section.notes)
    assert "**By today's rule the control is not caught**" in told


def report(failures: list[str]) -> dict[str, Any]:
    records = [record("a", number) for number in range(4)]
    return {
        "model": "m",
        "seeds": "held-out",
        "num_cases": 4,
        "rule": "0123",
        "refusal": None,
        "gate": {"green": not failures, "failures": failures},
        "at_floor": {"b s": 0.1},
        "kinds_at_floor": {"spoken": 0.12},
        "summary": summarise(records, records, 0),
        "harm": harm(records),
        "control": control(records, 0),
    }


def test_the_table_has_every_way_and_says_what_is_out() -> None:
    text = "\n".join(as_table(report([])))
    for said in (
        EXACT.name,
        AUTO.name,
        CONTROL.name,
        "b s (10 %)",
        "spoken (12 %)",
        "0 of 4 edits",
        "flattered +125.0",
        "rule 0123",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("kl", "num", "said"),
    [
        (0.02, LEAST_ALIKE, "beside `exact`: `auto`."),
        (0.02, LEAST_ALIKE - 1, "beside `exact`: nothing. Not decided: `auto`."),
        (0.2, LEAST_ALIKE - 1, "beside `exact`: nothing."),
    ],
)
def test_the_page_of_a_chain_has_each_way_and_says_what_passes(kl: float, num: int, said: str) -> None:
    """Cases that are all alike decide nothing while they are few."""
    records = [record(thoughts.TASK, number + 1) for number in range(4)]
    for one in records:
        one["variants"][AUTO.name]["kl"] = [kl] * 4
    summary = [row | {"num_cases": num} for row in summarise(records, records, 0)]
    made = report([]) | {"summary": summary}
    (section,) = (one for one in REPAIRS if "repairs-thoughts" in one.files)
    assert callable(section.answer)
    assert section.answer({"repairs-thoughts": made}).endswith(said)
    rows = list(section.tables[0].rows({"repairs-thoughts": made}))
    assert [row[:2] for row in rows] == [
        ["exact", "100 %"],
        ["`reuse`", "0 %"],
        ["control: words of the question", "10 %"],
        ["`auto`", "50 %"],
    ]


def test_a_red_gate_gives_the_failure_and_no_number() -> None:
    text = "\n".join(as_table(report(["control: it passes"])))
    assert "control: it passes" in text
    assert "%" not in text
