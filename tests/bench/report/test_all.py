"""`bench all`: it runs what every benchmark lists, and a failure is named and stops nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acmserve.bench.harness.benchmark import BenchmarkRun
from acmserve.bench.report.all import all_runs, main, run_one, summary
from acmserve.cli import main as cli


def test_no_two_runs_have_one_name() -> None:
    assert len({run.name for run in all_runs()}) == len(all_runs()) > 10


@pytest.mark.parametrize("name", sorted({run.arguments[0] for run in all_runs()}))
def test_a_run_has_the_flags_that_its_benchmark_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli(["bench", name, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--json FILE" in shown
    for run in all_runs():
        if run.arguments[0] == name:
            assert ("--plot " in shown) is run.can_plot
            assert not run.quick or "--quick" in shown
            assert all(argument in shown for argument in run.arguments[1:])


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--only", "speed"])
    assert stop.value.code == 2
    assert "speed" in capsys.readouterr().err


def test_a_run_that_writes_nothing_failed(tmp_path: Path) -> None:
    (tmp_path / "silent.json").write_text(json.dumps({"old": True}), encoding="utf-8")
    ended = run_one(BenchmarkRun("silent", ("map", "--help")), tmp_path, is_quick=False)
    assert ended.failure == "wrote no silent.json"
    assert not (tmp_path / "silent.json").exists()
    assert summary([ended], tmp_path, is_quick=False)[-1] == "FAILED: silent"


def test_a_run_that_fails_is_named_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = [BenchmarkRun("broken", ("map", "--nothing")), BenchmarkRun("silent", ("map", "--help"))]
    monkeypatch.setattr("acmserve.bench.report.all.all_runs", lambda: runs)
    assert main(["--out", str(tmp_path / "new")]) == 1
    assert (tmp_path / "new").is_dir()
    shown = capfd.readouterr()
    assert "== 2 of 2: acmserve bench map --help" in shown.out
    assert "== broken: failed with exit code 2 after" in shown.err
    assert "FAILED: broken, silent" in shown.out
