"""What `bench calibrate` records: its bars, its red gates, and its section of the page. No engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.calibrate.bars import MOST_SECONDS, NOT_JUDGED, PASSES, STAYS_EXACT, as_report, family_verdict
from acmserve.bench.calibrate.bench import main
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.page_height import check_page
from acmserve.bench.report.sections.repairs import REPAIRS
from acmserve.bench.tasks.generators import pi_llm
from acmserve.plan import calibration


def row(edits: str, *, moved: float = 0.5, kl: float = 0.01, beside: float = 0.0, harmed: int = 0) -> dict[str, Any]:
    auto = {"moved_share": moved, "kl": kl, "kl_interval": [0.0, 0.02], "right_beside_exact": beside}
    auto |= {"right_beside_exact_interval": [-0.01, 0.01]}
    return {"edits": edits, "num_cases": 8, "auto": auto, "reuse": auto | {"kl": 0.9}, "num_harmed": harmed}


def written(level: str, *rows: dict[str, Any]) -> dict[str, Any]:
    """As much of a calibration file as is read."""
    return {"level": level, "measured": {"edits": list(rows), "at_floor": {"mrcr 2": 0.1}, "digest": "abc"}}


@pytest.mark.parametrize(
    ("level", "rows", "verdict", "is_met"),
    [
        (calibration.EXACT, [], STAYS_EXACT, True),
        (calibration.CAREFUL, [row(pi_llm.TASK, moved=0.0)], STAYS_EXACT, True),
        (calibration.CAREFUL, [row(pi_llm.TASK, kl=0.1, beside=-0.02)], PASSES, True),
        (calibration.CAREFUL, [row("unrelated")], NOT_JUDGED, False),
        (calibration.CAREFUL, [row(pi_llm.TASK, kl=0.101)], "a repair with 0.101 nats, at most 0.1 are allowed", False),
        (
            calibration.CAREFUL,
            [row(pi_llm.TASK, harmed=1)],
            "a repair that is worse than `reuse` in 1 of 8 edits",
            False,
        ),
        (
            calibration.CAREFUL,
            [row(pi_llm.TASK, beside=-0.03)],
            "a repair that loses 3.0 points of right answers",
            False,
        ),
    ],
)
def test_updates_stay_exact_or_have_a_repair_that_passes(
    level: str, rows: list[dict[str, Any]], verdict: str, is_met: bool
) -> None:
    assert family_verdict(level, rows, pi_llm.TASK) == verdict
    report = as_report("smollm2", 8, 400.0, written(level, *rows), 0)
    assert [bar["is_met"] for bar in report["bars"]] == [True, is_met]


@pytest.mark.parametrize(("seconds", "is_met"), [(MOST_SECONDS, True), (MOST_SECONDS + 0.1, False)])
def test_ten_minutes_are_allowed(seconds: float, is_met: bool) -> None:
    report = as_report("smollm2", 8, seconds, written(calibration.EXACT), 0)
    assert report["bars"][0] == {"what": "time", "value": round(seconds, 1), "is_met": is_met}


@pytest.mark.parametrize(
    ("found", "code", "failures"),
    [
        (None, 1, ["`acmserve calibrate` ended with exit code 1", "`acmserve calibrate` wrote no calibration"]),
        (None, 0, ["`acmserve calibrate` wrote no calibration"]),
        (written(calibration.EXACT), 2, ["`acmserve calibrate` ended with exit code 2"]),
    ],
)
def test_a_command_that_failed_leaves_no_numbers(found: dict[str, Any] | None, code: int, failures: list[str]) -> None:
    report = as_report("smollm2", 8, 400.0, found, code)
    assert report["gate"] == {"green": False, "failures": failures}
    assert "seconds" not in report
    assert "bars" not in report


def test_the_command_is_run_as_a_user_runs_it_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for the interpreter says what it was called with, and copies a calibration to `--out`."""
    calibrated = tmp_path / "made.json"
    calibrated.write_text(json.dumps(written(calibration.CAREFUL, row(pi_llm.TASK, moved=0.0), row("all edits"))))
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/words\nsleep 0.2\nfor out; do :; done\ncp {calibrated} $out\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert main(["--json", str(tmp_path / "calibrate.json")]) == 0
    words = (tmp_path / "words").read_text().split()
    assert words[:-1] == ["-m", "acmserve", "calibrate", "smollm2", "--cases", "8", "--out"]
    report = json.loads((tmp_path / "calibrate.json").read_text())
    assert (report["level"], report["verdict"], report["num_cases"]) == (calibration.CAREFUL, STAYS_EXACT, 8)
    assert report["seconds"] >= 0.2
    shown = capsys.readouterr().out
    assert "PI-LLM updates" in shown
    assert "gate green" in shown


def test_the_section_stands_on_the_page_once_it_was_measured(tmp_path: Path) -> None:
    def shown() -> str:
        return "\n".join(sections_of(REPAIRS[-1:], tmp_path, read_ledger(tmp_path)))

    assert shown() == ""
    found = written(calibration.CAREFUL, row(pi_llm.TASK, moved=0.0), row("all edits"))
    report = as_report("smollm2", 8, 425.0, found, 0)
    (tmp_path / "calibrate.json").write_text(json.dumps(report))
    page = shown()
    assert "It took 7:05 min and chose the level `careful`. Updates as in PI-LLM get: exact." in page
    assert "| PI-LLM updates | exact | exact, or a repair that passes | met |" in page
    assert "| time | 7:05 min | at most 10:00 min | met |" in page
    assert page.startswith("<details"), "the section is not folded with its neighbours"
    assert REPAIRS[-1].group == REPAIRS[0].group
    check_page(page, [report])
