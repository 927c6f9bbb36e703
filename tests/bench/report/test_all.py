"""`bench all`: its table knows every benchmark, a failure is named and stops nothing, the forecast follows the pace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acmserve.bench.harness.benchmark import find_benchmarks
from acmserve.bench.report.all import PARTS, QUICK_MINUTES, Ended, Part, choose, forecast, main, run_parts, summary
from acmserve.cli import main as cli


def test_the_table_knows_every_benchmark_of_the_command_line() -> None:
    known = {part.arguments[0] for part in PARTS}
    assert known >= set(find_benchmarks()) - {"all", "report"}
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.parametrize(
    "part", [part for part in PARTS if part.arguments[0] in find_benchmarks()], ids=lambda part: part.name
)
def test_a_part_has_the_flags_that_the_table_says(part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli(["bench", part.arguments[0], "--help"])
    assert stop.value.code == 0
    told = capsys.readouterr().out
    assert "--json FILE" in told
    assert ("--plot " in told) is part.can_plot
    assert part.quick is None or "--quick" in told
    assert all(flag in told for flag in part.arguments if flag.startswith("--"))


def test_the_quick_parts_fit_into_the_promised_time_and_are_those_with_a_quick_way() -> None:
    quick = choose([], is_quick=True)
    assert {"edit", "kernel", "search", "trace", "fidelity", "tasks"} == {part.arguments[0] for part in quick}
    assert sum(part.expected(is_quick=True) for part in quick) <= 60 * QUICK_MINUTES
    assert all("--quick" in part.command(is_quick=True) for part in quick)


def test_a_benchmarks_name_stands_for_all_its_parts() -> None:
    assert [part.name for part in choose(["edit", "step"], is_quick=False)] == [
        *("edit", "edit-kinds", "edit-sweep", "edit-neighbours", "step")
    ]
    assert [part.name for part in choose(["edit-sweep"], is_quick=True)] == ["edit-sweep"]


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--only", "speed"])
    assert stop.value.code == 2
    assert "speed" in capsys.readouterr().err


def test_a_part_that_fails_is_named_and_the_next_one_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "silent.json").write_text(json.dumps({"old": True}), encoding="utf-8")
    parts = [Part("broken", ("search", "--repetitions", "0"), 5), Part("silent", ("search", "--help"), 5)]
    ended = run_parts(parts, tmp_path, is_quick=False)
    assert [one.failure for one in ended] == ["failed with exit code 2", "wrote no silent.json"]
    assert not (tmp_path / "silent.json").exists()
    shown = capfd.readouterr()
    assert "== 2 of 2: acmserve bench search --help" in shown.out
    assert "== broken: failed with exit code 2 after" in shown.err
    assert summary(ended, tmp_path, is_quick=False)[-1] == "FAILED: broken, silent"


def test_the_folder_is_made_and_the_exit_code_is_1_when_a_part_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = (Part("hop", ("search", "--help"), 5), Part("search", ("search", "--repetitions", "0"), 5))
    monkeypatch.setattr("acmserve.bench.report.all.PARTS", parts)
    assert main(["--out", str(tmp_path / "new"), "--only", "search"]) == 1
    assert (tmp_path / "new").is_dir()
    assert "FAILED: hop, search" in capfd.readouterr().out


def test_the_forecast_goes_by_the_pace_of_what_passed() -> None:
    parts = [Part("a", ("a",), 100), Part("b", ("b",), 50), Part("c", ("c",), 10)]
    assert forecast([], parts, is_quick=False) == 160
    assert forecast([Ended(parts[0], 200.0, None)], parts, is_quick=False) == 120
    assert forecast([Ended(parts[0], 1.0, "failed with exit code 2")], parts, is_quick=False) == 60
