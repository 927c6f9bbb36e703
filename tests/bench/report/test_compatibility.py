"""The table of model families is what the results say, and the results are of the families as they are listed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acmserve.bench.families.family import DEFAULT, SPEED
from acmserve.bench.families.main import as_report
from acmserve.bench.families.registry import FAMILIES
from acmserve.bench.families.runs import moves
from acmserve.bench.report.compatibility import RESULT, fill, made
from acmserve.errors import AcmError
from tests.support.docs.pages import ROOT, read_page

PAGE = "docs/compatibility.md"


@pytest.fixture(scope="module")
def report() -> Any:
    return json.loads((ROOT / f"benchmarks/results/{RESULT}.json").read_text(encoding="utf-8"))


def test_the_page_has_what_the_results_say(report: Any) -> None:
    """`acmserve bench report docs/compatibility.md` makes it anew."""
    assert fill(read_page(PAGE), report) == read_page(PAGE)


def test_the_results_are_of_the_families_as_they_are(report: Any) -> None:
    wanted = {
        (family.number, kind): (family.name, family.recipe, family.architecture, settings.flags, family.reduced)
        for family in FAMILIES
        for kind in (DEFAULT, SPEED)
        if (settings := family.settings(kind)) is not None
    }
    names = ("name", "recipe", "architecture", "flags", "reduced")
    found = {(row["number"], row["kind"]): tuple(row[name] for name in names) for row in report["rows"]}
    assert found == {key: wanted[key] for key in found}
    assert found.keys() >= {(family.number, DEFAULT) for family in FAMILIES}


def test_the_sums_are_those_of_the_rows(report: Any) -> None:
    again = as_report(report["rows"])
    assert {name: report[name] for name in again} == again
    assert report["gate"] == {"green": True, "failures": []}


def test_a_changed_row_changes_the_page(report: Any) -> None:
    """Negative control: a family that moved says that it did not."""
    index = next(index for index, row in enumerate(report["rows"]) if moves(row))
    row = report["rows"][index] | {"fold": {"kept": 0, "moved": 0, "computed": 9, "reason": "model: no reason"}}
    rows = [*report["rows"][:index], row | {"oracle": None}, *report["rows"][index + 1 :]]
    assert "`model: no reason`" in made(as_report(rows))
    assert fill(read_page(PAGE), as_report(rows)) != read_page(PAGE)


def test_the_page_counts_what_doctor_had_said(report: Any) -> None:
    one, other = (dict(row) for row in report["rows"][:2])
    one["told"], other["told"] = {"doctor": None, "engine": None}, {"doctor": None, "engine": "model: pooled"}
    assert "had said the same of 1 of 2 that started" in made(as_report([one, other]))
    assert "had said the same" not in made(as_report([one | {"told": None}]))


def test_the_sum_tells_what_moved_and_was_compared_with_nothing(report: Any) -> None:
    """An fp8 cache rounds a turned key. Each of these has a row that says so, and the sum is theirs."""
    moved = [row for row in report["rows"] if row["kind"] == SPEED and moves(row)]
    blind = [row for row in moved if row["rounds"]]
    assert all(bool(row.get("oracle")) is not row["rounds"] for row in moved)
    said = f"{len(moved)} move, {len(blind)} of them not compared, since fp8 rounds a turned key."
    assert said in made(report)
    assert made(report).count("| not compared, fp8 rounds a turned key |") == len(blind) > 0
    without = [row for row in report["rows"] if row not in blind]
    assert f"on top, {len(moved) - len(blind)} move." in made(as_report(without))


def test_a_page_without_its_place_is_refused(report: Any) -> None:
    with pytest.raises(AcmError, match="has no lines"):
        fill("# Compatibility\n", report)
