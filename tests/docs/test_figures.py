"""Every figure is found in a file of results, or in the code, so that one typed by hand fails."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from acmserve.bench.eval.task_evidence import (
    LOSS,
    WayDifference,
    compare_ways,
    over_budget,
    shown_by_task,
)
from acmserve.bench.report.sections.evaluations.evaluation_section import alike_told
from tests.support.docs.figures import FIGURES, Figure, checked_pages, read_result, unlisted, value_of
from tests.support.docs.figures_of_evaluation import extreme_ways, removing_ways
from tests.support.docs.pages import prose_of, read_page


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.pages[0]}: {figure.text}")
def test_a_figure_is_that_of_its_file_and_stands_on_its_pages(figure: Figure) -> None:
    assert value_of(figure) == figure.text
    for name in figure.pages:
        assert figure.text in re.sub(r"\s+", " ", prose_of(read_page(name))), name


def test_the_readme_names_the_ways_of_its_row_and_those_that_lose() -> None:
    """Of those that take text out. Another one says nothing about the row."""
    report = read_result("eval")
    worst, best = extreme_ways(report)
    page = read_page("README.md")
    assert f"that differ, `{worst.way}`. Beside it stands the best of" in page
    assert f"within theirs, `{best.way}`." in page
    assert alike_told(report) in page
    ways = removing_ways(report)
    for one in ways:
        told = f"`{one.way}` was over its budget in most samples of a task."
        assert (told in page) is (one.way in over_budget(report["rows"]))
    where = [one for one in compare_ways(report["rows"]) if one.way in {way.way for way in ways}]
    assert f"Over all tasks {below_zero(ways)}." in page
    shown = list(shown_by_task(report["rows"]).values())
    assert 2 * shown.count(LOSS) < len(shown)
    few = "No task can show on this small model that a budget loses."
    told = f"Where a loss can show, {below_zero(where)}. Most tasks cannot show one on this small model."
    assert (told if where else few) in page


def below_zero(ways: Sequence[WayDifference]) -> str:
    """Which of them have an interval below zero, as the README says it."""
    names = [f"`{one.way}`" for one in ways if one.interval and one.interval[1] < 0]
    if not names:
        return "each interval reaches zero"
    return f"{' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} lie below zero by their intervals"


@pytest.mark.parametrize("name", list(checked_pages()))
def test_no_figure_is_typed_by_hand(name: str) -> None:
    assert unlisted(name, read_page(name)) == []


@pytest.mark.parametrize(
    "changed",
    [
        *("9876.5 s", "9876 times", "9876 ms", "9876 %", "9876.5 nats", "+9876 points", "[-9876, 9877]"),
        *("9876 to 9877 seconds", "9876%"),
    ],
)
def test_a_changed_figure_is_found(changed: str) -> None:
    """No recording can have one of these."""
    page = read_page("README.md")
    assert unlisted("README.md", page) == []
    assert unlisted("README.md", f"{page}\nIt takes {changed} here.\n")
    shown = next(figure.text for figure in FIGURES if figure.file == "edit-cpu" and figure.text.endswith(" s"))
    spoilt = re.sub(rf"(?<![\d.,]){re.escape(shown)}", "9876.5 s", page)
    assert set(unlisted("README.md", spoilt)) == {"9876.5 s"}
