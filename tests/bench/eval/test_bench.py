"""`bench eval` against a toy server: every task in every way that runs no code, and the tables that come of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acmserve.bench.eval.bench import SIZES, _parser, play
from acmserve.bench.eval.schedule.pace import EvalPace
from acmserve.bench.eval.schedule.sittings import of_sittings
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.sections.answers import ANSWERS
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says

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
        report = play(url, options, EvalPace(8))
    assert report["gate"]["green"] is is_green
    assert {row["task"] for row in report["rows"]} == {*DEFAULT_TASKS, "all"}
    assert {row["way"] for row in report["rows"]} == {"baseline", "reads", "shared", "rag"}
    assert report["max_tokens"] == 48
    assert "records" not in report
    assert "budget:cwl" in report["skipped"]
    assert "rlm" not in report["skipped"]
    [journal] = (tmp_path / "work").iterdir()
    assert journal.name == f"{report['run']}.played.jsonl"
    assert report["num_played"] == report["num_planned"]
    (sitting,) = report["sittings"]
    assert sitting["num_played"] == report["num_played"]
    assert report["machine"]["commit"] == sitting["commit"]
    assert report["use"]["answers"] == sum(row["num_requests"] for row in report["rows"] if row["task"] == "all")


def test_cells_grow_alike(tmp_path: Path) -> None:
    """In a round each task has two samples, or four questions about one context, in each way that plays it."""
    assert SIZES.keys() == set(DEFAULT_TASKS)
    options = _parser().parse_args(["--samples", "3", "--work", str(tmp_path)])
    with openai_server(toy()) as url:
        report = play(url, options, EvalPace(8))
    nums = {(row["task"], row["way"]): row["num_samples"] for row in report["rows"] if row["task"] != "all"}
    assert {num for (task, _), num in nums.items() if task != "oolong"} == {6}
    assert {num for (task, _), num in nums.items() if task == "oolong"} == {12}


def test_a_run_that_is_over_tells_what_it_has_and_the_next_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = _parser().parse_args(["--samples", "2", "--work", str(tmp_path)])
    clock = [0.0]

    def ticking(body: object) -> Answer:
        clock[0] += 1
        return toy()._reply(body)

    with openai_server(ToyModel(ticking)) as url:
        part = play(url, options, EvalPace(1, 100.0, lambda: clock[0]))
        assert "The same command goes on with" in capsys.readouterr().err
        whole = play(url, options, EvalPace(8))
    assert part["gate"]["green"]
    assert part["num_played"] < whole["num_played"] == whole["num_planned"] == part["num_planned"]
    cells = [{(row["task"], row["way"]) for row in report["rows"]} for report in (part, whole)]
    assert cells[0] == cells[1]
    assert [sitting["num_played"] for sitting in whole["sittings"]] == [
        part["num_played"],
        whole["num_played"] - part["num_played"],
    ]


def test_a_result_is_as_old_as_its_first_sitting_and_as_busy_as_all_of_them() -> None:
    shares = {"own_share": 0.8, "other_share": 0.4, "stolen_share": None}
    sittings = [
        {"machine": {"date": "monday", "commit": "a"}, "use": {"seconds": 30.0, **shares}, "num_played": 3},
        {"machine": {"date": "friday", "commit": "b"}, "use": {"seconds": 90.0, **shares, "other_share": 0.0}},
        {"machine": {"date": "sunday", "commit": "b"}},
    ]
    told = of_sittings(sittings, 7)
    assert told["machine"]["commit"] == "a"
    assert told["use"] == {
        "seconds": 120.0,
        "own_share": 0.8,
        "other_share": 0.1,
        "stolen_share": None,
        "answers": 7,
    }
    assert [sitting["commit"] for sitting in told["sittings"]] == ["a", "b", "b"]


def test_the_page_has_the_table_where_there_are_results(tmp_path: Path) -> None:
    assert "## Evaluation" not in "\n".join(sections_of([SECTION], tmp_path, read_ledger(tmp_path)))
    with openai_server(toy()) as url:
        arguments = ["--samples", "1", "--work", str(tmp_path / "work"), "--tasks", "babilong"]
        report = play(url, _parser().parse_args(arguments), EvalPace())
    (tmp_path / "eval.json").write_text(json.dumps(report))
    shown = "\n".join(sections_of([SECTION], tmp_path, read_ledger(tmp_path)))
    assert "| `baseline` | - | - | - | - | - | 0 [0, " in shown
    assert "], n 2 |" in shown
    assert "No way got more than 5 % right of `babilong`." in shown
    assert shown.count("| `memagent` |") == 2
