"""`bench commits`: the recorded count, its table, and what turns its gate red."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.harness.options import as_gate
from acmserve.bench.sculptor.commits import FOLDS, MOST, TITLES, WAYS, _check_rows

_RECORDED = Path(__file__).parents[3] / "benchmarks" / "results" / "commits.json"


@pytest.fixture
def report() -> Any:
    return json.loads(_RECORDED.read_text(encoding="utf-8"))


def test_one_fold_a_step_costs_at_most_a_fifth_more_than_all_at_once(report: Any) -> None:
    assert report["gate"]["green"]
    counts = {row["way"]: row["computed_tokens"] for row in report["rows"]}
    assert list(counts) == list(WAYS)
    assert counts["cheapest"] <= MOST * counts["at once"]
    assert counts["now"] > 10 * counts["at once"]
    for row in report["rows"]:
        assert row["computed_tokens"] == sum(row["step_computed_tokens"]) + row["next_turn_computed_tokens"]
        assert row["num_folds"] == 8


def test_the_table_has_a_line_for_each_way(report: Any) -> None:
    rows = list(FOLDS.rows(report))
    assert [row[0] for row in rows] == list(TITLES.values())
    assert TITLES.keys() == WAYS.keys()
    assert rows[0][-1].startswith("1.00")
    assert told_by(FOLDS)(report | {"gate": as_gate(["no"])})[0].startswith("GATE RED")


def test_a_fold_that_is_missing_and_one_that_is_dear_are_found(report: Any) -> None:
    assert _check_rows(report["rows"]) == []
    rows = deepcopy(report["rows"])
    rows[1]["num_folds"] = 7
    rows[2]["computed_tokens"] = 2 * rows[0]["computed_tokens"]
    assert len(_check_rows(rows)) == 2
