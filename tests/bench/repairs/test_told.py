"""What pages say of a recorded `bench repairs`: whose rule it is, and which of its bars are missed."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.harness.markdown_text import MET, MISSED, UNDECIDED
from acmserve.bench.repairs import lists
from acmserve.bench.repairs.cases import CLEARING_ONE, HELD_OUT, NEWEST, TIMES_PRECISE, TRAIN
from acmserve.bench.repairs.recorded import recorded_row, unfinished
from acmserve.bench.repairs.rule import FIXED_RULES, has_rule_of_today, rule_digest
from acmserve.bench.repairs.summary import LEAST_ALIKE, MIX, within_loss
from acmserve.bench.report.decision import NUMBERS
from acmserve.bench.report.page_section import PageSection
from acmserve.bench.report.sections.missed import BESIDE
from acmserve.bench.report.sections.repairs import OLDER_RULE, REPAIRS, _rule, _stopped
from tests.support.docs.figures import FIDELITY, read_result
from tests.support.docs.pages import ROOT

(BAR,) = (one for one in BESIDE if tuple(one.files) == ("repairs",))
NUMBER = next(number for number in NUMBERS if "repairs" in number.files)
OLD = "0123456789abcdef"


def judged(low: float, high: float, num_cases: int = 12) -> dict[str, Any]:
    return {"right_beside_exact_interval": [low, high], "num_cases": num_cases}


def repaired(
    width: float = 0.02, low: float = -0.01, *, harmed: int = 0, kl: float = 0.04, rule: str = "", **moved: float
) -> dict[str, Any]:
    """Every bar is just met, but for what is given."""
    found = {"mix": (MIX, 0.6), "lists": (lists.TASK, 0.75), "clearing": (CLEARING_ONE, 0.4)}
    shares = {task: moved.get(name, least) for name, (task, least) in found.items()} | {"large removal": 0.25}
    rows = [
        {"task": task, "way": "auto", "role": "all", "moved_share": share, **judged(-0.01, 0.01)}
        for task, share in shares.items()
    ]
    rows[1] |= judged(low, low + width)
    summary = [row | {"kl": kl if row["task"] == "large removal" else 0.02} for row in rows]
    harm = {"num_edits": 125, "num_edits_harmed": harmed}
    return {"repairs": {"summary": summary, "harm": harm, "rule": rule or rule_digest()}}


BARS = {
    "Of the whole mix `auto` moves 59 %, not 60 %.": repaired(mix=0.59),
    "Of lists in prose `auto` moves 74 %, not 75 %.": repaired(lists=0.74),
    "Of clearing, keep 1 `auto` moves 39 %, not 40 %.": repaired(clearing=0.39),
    "worse than `reuse` by more than 0.1 nats in 1 of 125 edits, 0 at most.": repaired(harmed=1),
    "KL is 0.041 nats for large removal, 0.04 at most.": repaired(kl=0.041),
    "Beside `exact` it may lose 1.1 points of lists in prose, 1 at most.": repaired(low=-0.011),
    "cannot decide for 1 of 3 families. Intervals there are up to 2.1 points wide, 2 at most.": repaired(0.021, 0.01),
    "cannot decide for 1 of 3 families.": repaired(0.0, 0.0),
}


@pytest.mark.parametrize("said", BARS)
def test_a_bar_is_told_while_it_is_missed(said: str) -> None:
    assert said in BAR.told(BARS[said])
    assert BAR.told(repaired()) == ""


def section(name: str) -> PageSection:
    (found,) = (one for one in REPAIRS if tuple(one.files) == (name,))
    return found


def told_of(name: str, report: dict[str, Any]) -> str:
    """Answer and notes of its section."""
    texts = (section(name).answer, *section(name).notes)
    return " ".join(text if isinstance(text, str) else text({name: report}) for text in texts)


@pytest.mark.parametrize("name", ["repairs", "repairs-thoughts"])
def test_a_page_says_by_itself_whether_the_rule_of_its_file_ships(name: str) -> None:
    """The same records, with the digest of the rule that ships and with another one."""
    older, todays = ({**read_result(name), "rule": rule} for rule in (OLD, rule_digest()))
    assert (has_rule_of_today(older), has_rule_of_today(todays)) == (False, True)
    told = told_of(name, older)
    assert told.startswith(f"{OLDER_RULE} `auto`")
    assert f"{OLD}" in told
    assert f"The rule of today is {rule_digest()}, and was not measured here." in told
    assert OLDER_RULE not in told_of(name, todays)
    assert "rule of today" not in told_of(name, todays)


def test_the_table_says_that_the_bar_of_the_first_screen_is_another_one() -> None:
    """Two bars of one number, each by its own constant."""
    told = told_of("repairs", read_result("repairs"))
    assert "That it loses 1 point at most is met" in told
    assert "The bar of the first screen is another one: the whole interval above -2." in told
    assert NUMBER.bar == "whole interval above -2"


def test_the_first_screen_says_whose_rule_its_number_and_its_bars_are() -> None:
    older, todays = ({"repairs": {**read_result("repairs"), "rule": rule}} for rule in (OLD, rule_digest()))
    assert NUMBER.text(older) == f"{NUMBER.text(todays)} (an older rule)"
    assert "rule" not in NUMBER.text(todays)
    assert BAR.told(repaired(mix=0.59, rule=OLD)) == f"{OLDER_RULE} {BAR.told(repaired(mix=0.59))}"
    assert BAR.told(repaired(rule=OLD)) == "", "of bars that are met nothing is told"


def test_the_page_of_fidelity_claims_numbers_of_todays_rule_only_while_there_are() -> None:
    """A recording with today's rule makes this red, and so does a new rule behind it. Then the page is mended."""
    page = (ROOT / FIDELITY).read_text(encoding="utf-8")
    is_todays = has_rule_of_today(read_result("repairs"))
    assert ("The rule of today has [its own numbers]" in page) is is_todays


def whole(num_each: int = 4, *, planned: bool = True) -> dict[str, Any]:
    """A run of two families, with records of which only the family counts."""
    counts = {lists.TASK: TIMES_PRECISE * num_each, "needles": num_each}
    records = [{"task": task} for task, number in counts.items() for _ in range(number)]
    return {"num_cases": len(records), "records": records} | ({"planned": counts} if planned else {})


def stopped(report: dict[str, Any]) -> dict[str, Any]:
    """Its first three cases are missing."""
    return report | {"records": report["records"][3:], "num_cases": report["num_cases"] - 3}


@pytest.mark.parametrize("planned", [True, False])
def test_a_run_that_was_stopped_is_told_by_its_records(planned: bool) -> None:
    """An older file has no plan."""
    report = whole(planned=planned)
    assert unfinished(report) == {}
    assert _stopped({"repairs": report}) == ""
    assert unfinished(stopped(report)) == {lists.TASK: (9, 12)}
    told = _stopped({"repairs": stopped(report)})
    assert "with 13 of 16 cases. Fewer than were planned have: lists in prose (9 of 12)." in told


def test_a_family_of_which_no_case_was_run_is_told_where_there_is_a_plan() -> None:
    report = whole()
    report["planned"] |= {"pi-llm": 4}
    assert unfinished(report) == {"pi-llm": (0, 4)}
    assert "PI-LLM (0 of 4)" in _stopped({"repairs": report})


def test_the_recorded_run_is_told_as_stopped_and_that_of_chains_is_not() -> None:
    """Of the chains every case was run. A made file with all cases of the other is whole."""
    assert unfinished(read_result("repairs-thoughts")) == {}
    report = read_result("repairs")
    less = unfinished(report)
    told = _stopped({"repairs": report})
    assert bool(less) is bool(told)
    if report["seeds"] == HELD_OUT:
        assert less
        assert "with 128 of" in told
    missing = [{"task": task} for task, (run, planned) in less.items() for _ in range(planned - run)]
    assert unfinished({**report, "records": [*report["records"], *missing]}) == {}


def cases_told(seeds: str, rule: str) -> str:
    told = _rule({"repairs": {"num_cases": 7, "seeds": seeds, "rule": rule}})
    assert told.startswith("The 7 cases have ")
    return told


def test_a_page_says_whether_the_rule_was_fixed_before_its_seeds_were_run() -> None:
    first, second = FIXED_RULES[HELD_OUT], FIXED_RULES[NEWEST]
    assert "held-out seeds from 60,000 on, and the rule of `auto` was" in cases_told(HELD_OUT, first)
    assert "held-out seeds from 90,000 on" in cases_told(NEWEST, second)
    for seeds, rule in ((HELD_OUT, first), (NEWEST, second)):
        assert "that digest from before the run" in cases_told(seeds, rule)
    for seeds, rule in ((HELD_OUT, second), (NEWEST, first)):
        told = cases_told(seeds, rule)
        assert f"**The {seeds} seeds are for the rule {FIXED_RULES[seeds]}, and this is {rule}**." in told
        assert "before the run" not in told
    told = cases_told(TRAIN, OLD)
    assert "training seeds" in told
    assert "before the run" not in told


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.01, MET),
        (0.0, 0.02, MET),
        (-0.011, 0.009, MISSED),
        (-0.011, 0.01, UNDECIDED),
        (0.0, 0.021, UNDECIDED),
        (-0.2, -0.009, UNDECIDED),
        (-0.2, -0.011, MISSED),
    ],
)
def test_within_a_point_is_judged_by_the_lower_end_of_an_interval_that_is_narrow_enough(
    low: float, high: float, verdict: str
) -> None:
    """A wide one decides nothing. Only where all of it is below the bar, that is missed."""
    assert within_loss({"moved_share": 0.5, **judged(low, high)}) == verdict


def test_cases_without_any_difference_decide_only_if_they_are_many() -> None:
    """They have no spread, so their interval has no width. Where nothing moved, nothing can be lost."""
    few, many = (judged(0.0, 0.0, number) for number in (LEAST_ALIKE - 1, LEAST_ALIKE))
    assert within_loss({"moved_share": 0.5, **few}) == UNDECIDED
    assert within_loss({"moved_share": 0.5, **many}) == MET
    assert within_loss({"moved_share": 0.0, **few}) == MET
    assert within_loss({"moved_share": 0.0, "right_beside_exact_interval": None, "num_cases": 1}) == UNDECIDED


def test_the_mix_is_named_beside_the_families() -> None:
    report = repaired(0.021, 0.01)
    report["repairs"]["summary"][0] |= judged(-0.05, 0.05)
    told = BAR.told(report)
    assert f"for 1 of 3 families and {MIX}. Intervals there are up to 10.0 points wide" in told
    report["repairs"]["summary"][1] |= judged(-0.01, 0.01)
    assert f"the run cannot decide for {MIX}." in BAR.told(report)


def test_the_table_has_the_verdict_of_each_family() -> None:
    """That of the recorded file, row by row."""
    report = read_result("repairs")
    table = section("repairs").tables[0]
    at = list(table.heads).index("loses 1 point at most")
    shown = [row[at] for row in table.rows({"repairs": report})]
    tasks = dict.fromkeys(row["task"] for row in report["summary"])
    assert shown == [within_loss(recorded_row(report, task, "auto")) for task in tasks]
    assert {MET, UNDECIDED} <= set(shown)
