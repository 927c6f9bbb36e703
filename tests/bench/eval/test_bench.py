"""`bench eval` against a toy server: every task in every way that runs no code, and the tables that come of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acmserve.bench.eval.bench import _parser, play
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.sections.answers import ANSWERS
from tests.support.server.fake_openai import ToyModel, openai_server, says

SECTION = next(section for section in ANSWERS if section.files == ("eval",))


def toy(status: int = 200) -> ToyModel:
    _, said = says("no idea", {"prompt_tokens": 9, "completion_tokens": 2})
    return ToyModel(lambda body: (status, said))


@pytest.mark.parametrize(("status", "is_green"), [(200, True), (400, False)])
def test_every_task_is_played_and_a_refused_sample_makes_the_gate_red(
    tmp_path: Path, status: int, is_green: bool
) -> None:
    options = _parser().parse_args(["--quick", "--work", str(tmp_path / "work")])
    with openai_server(toy(status)) as url:
        report = play(url, options)
    assert report["gate"]["green"] is is_green
    assert {row["task"] for row in report["rows"]} == {*DEFAULT_TASKS, "all"}
    assert {row["way"] for row in report["rows"]} == {"baseline", "reads", "shared", "rag"}
    assert report["max_tokens"] == 48
    assert "records" not in report
    assert "budget:cwl" in report["skipped"]
    assert "rlm" not in report["skipped"]
    [journal] = (tmp_path / "work").iterdir()
    assert journal.name == f"{report['run']}.played.jsonl"


def test_the_page_has_the_table_where_there_are_results(tmp_path: Path) -> None:
    assert "## Evaluation" not in "\n".join(sections_of([SECTION], tmp_path, read_ledger(tmp_path)))
    with openai_server(toy()) as url:
        report = play(
            url, _parser().parse_args(["--samples", "1", "--work", str(tmp_path / "work"), "--tasks", "babilong"])
        )
    (tmp_path / "eval.json").write_text(json.dumps(report))
    shown = "\n".join(sections_of([SECTION], tmp_path, read_ledger(tmp_path)))
    assert "| `baseline` | - | - | - | - | - | 0 [0, " in shown
    assert "], n 1 |" in shown
    assert shown.count("| `memagent` |") == 2
