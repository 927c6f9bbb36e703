"""A sitting records what it measured: nothing red, busy, or of other code. What is ended leaves no process behind.

The rounding of chains of moves is measured for real. It counts, so a machine that runs a suite does for it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import partial_file
from acmserve.bench.report import reruns, sitting
from acmserve.bench.report.all import RESULTS
from acmserve.bench.report.rerun_plan import NEVER, Rerun
from acmserve.bench.report.sitting import Sitting, _taken_back, end_process, read_noted, refusal, words_of
from acmserve.bench.report.sources import ResultSource, find_sources
from tests.support.docs.pages import ROOT, has_history

NEEDS_HISTORY = pytest.mark.skipif(not has_history(), reason="the history of git is not here, or not whole")
HOPS = find_sources()["hops"]
USE = {"seconds": 9.0, "own_share": 0.9, "other_share": 0.0, "stolen_share": 0.0}
WITH_A_CHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def rerun_of(source: ResultSource, seconds: float | None = 5.0) -> Rerun:
    return Rerun(source.command, (source.name,), seconds, source.is_timed, NEVER)


def head() -> str:
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


@NEEDS_HISTORY
def test_a_result_that_is_measured_is_recorded_with_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless somebody works on what it measures just now: then it is refused, and says so."""
    monkeypatch.setattr(reruns, "UNFINISHED", tmp_path / "unfinished")
    asked = ["--run", "--only", "hops", "--results", str(tmp_path / "results"), "--max-minutes", "60"]
    code = reruns.main(asked)
    changed = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *HOPS.measures]
    is_clean = not subprocess.run(changed, check=True, capture_output=True).stdout
    file = tmp_path / ("results/hops.json" if is_clean else "unfinished/hops.refused.json")
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["use"]["seconds"] > 0
    assert report["machine"]["commit"].removesuffix("+") == head()
    assert code == int(not is_clean)
    shown = capsys.readouterr()
    assert f"{int(is_clean)} of 1 commands are recorded:" in shown.out
    assert "== 1 of 1: python -m benchmarks.micro.rotation_error; " in shown.err


@NEEDS_HISTORY
@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("edit-cpu", {}, ""),
        ("edit-cpu", {"use": USE | {"other_share": 0.2}}, "other work took 20 % of the processors"),
        ("commits", {"use": USE | {"other_share": 0.2}}, ""),
        ("edit-cpu", {"cells": [{"num_repetitions": 4}]}, "its 4 repetitions are too few, times need 5"),
        ("gpu", {"stages": {"fold": {"repetitions": 3}}}, "its 3 repetitions are too few"),
        ("commits", {"repetitions": 1}, ""),
        ("edit-cpu", {"gate": {"green": False, "failures": ["a token differs"]}}, "its gate is red: a token differs"),
        ("soak", {"gate": {"green": False}}, "its gate is red"),
        ("edit-cpu", {"partial": True}, "it is a part of a result"),
        ("edit-cpu", {"machine": {"commit": None}}, "commit not recorded"),
        ("edit-cpu", {"changed": ["csrc/move.cpp"]}, "measured on a modified tree"),
        ("edit-cpu", {"changed": ["README.md"]}, ""),
    ],
)
def test_what_may_not_be_recorded_says_why(name: str, more: dict[str, Any], why: str, tmp_path: Path) -> None:
    """On a checkout whose product is that of its commit."""
    clone = tmp_path / "clone"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    clone.mkdir()
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "one"], check=True)
    asked = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    changed = more.get("changed", [])
    machine = {"commit": asked.stdout.strip() + ("+" if changed else ""), "changed": changed, "cores": 2}
    report = {"gate": {"green": True, "failures": []}, "use": USE, "machine": machine} | more
    found = refusal(find_sources()[name], report, clone)
    assert found.startswith(why) if why else not found


def test_a_count_comes_before_times_while_the_machine_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands fail at once. Each is told, and none is run twice."""
    sources = {
        name: ResultSource(name, f"python -m nowhere.{name}", ("docs",), is_timed)
        for name, is_timed in (("times", True), ("count", False))
    }
    monkeypatch.setattr(sitting, "_LOOK_AGAIN_SECONDS", 0.0)
    looks = iter([False, False, True])
    held = Sitting(tmp_path / "a", tmp_path / "b", 600.0, is_quiet=lambda: next(looks), sources=sources)
    held.hold([rerun_of(source) for source in sources.values()])
    assert [one.rerun.names for one in held.ended] == [("count",), ("times",)]
    assert [one.failure for one in held.ended] == [f"wrote no {name}.json, exit code 1" for name in ("count", "times")]
    said = capsys.readouterr().err
    assert "== 1 of 2: python -m nowhere.count; about 5 s, " in said
    assert "the machine is busy, " in said
    without = Sitting(tmp_path / "a", tmp_path / "b", is_quiet=lambda: False, sources=sources)
    without.hold([rerun_of(sources["times"])])
    assert [one.names for one in without.left] == [("times",)], "without a deadline nobody waits"
    assert "Left, since it did not fit or the machine was busy:" in without.summary()


def test_a_command_that_goes_on_at_the_deadline_is_ended_and_its_time_is_noted(tmp_path: Path) -> None:
    """What it measures takes longer than this second, in which it has not imported what it needs."""
    before = (RESULTS / "hops.json").read_bytes()
    held = Sitting(tmp_path, tmp_path / "unfinished", 1.0)
    (tmp_path / "unfinished").mkdir()
    others = set(psutil.Process().children())
    assert held.measure(rerun_of(HOPS)) == "was ended, since the time was over"
    assert set(psutil.Process().children()) <= others
    assert [file.name for file in tmp_path.iterdir()] == ["unfinished"]
    assert (RESULTS / "hops.json").read_bytes() == before
    assert read_noted(tmp_path / "unfinished")["hops"] >= 2.0


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("is_asked_alone", [False, True])
def test_what_a_command_started_ends_with_it(is_asked_alone: bool) -> None:
    """The control: who asks the command alone to end leaves what it started in a session of its own."""
    process = subprocess.Popen([sys.executable, "-c", WITH_A_CHILD], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    (child,) = psutil.Process(process.pid).children()
    try:
        if is_asked_alone:
            process.terminate()
            process.wait()
        else:
            end_process(process)
        assert is_alive(child) is is_asked_alone
        assert process.returncode == -signal.SIGTERM
    finally:
        if is_alive(child):
            child.kill()
        process.communicate()


def test_what_a_target_of_make_writes_is_judged_before_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, unfinished = tmp_path / "results", tmp_path / "unfinished"
    for folder in (results, unfinished):
        folder.mkdir()
    (results / "old.json").write_text("old")
    (results / "same.json").write_text("same")
    monkeypatch.setattr(sitting, "RESULTS", results)
    with _taken_back([unfinished / f"{name}.json" for name in ("old", "new", "same")]):
        (results / "old.json").write_text("anew")
        (results / "new.json").write_text("new")
    assert {file.name: file.read_text() for file in results.iterdir()} == {"old.json": "old", "same.json": "same"}
    assert {file.name: file.read_text() for file in unfinished.iterdir()} == {"old.json": "anew", "new.json": "new"}


@pytest.mark.parametrize("old", [None, "old"])
def test_the_part_that_a_target_of_make_left_when_it_was_ended_is_taken_back(
    old: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make eval-learner` leaves it in the results of the checkout, where the ledger would know no such file."""
    results = tmp_path / "results"
    results.mkdir()
    part = results / "learner.partial.json"
    if old is not None:
        part.write_text(old)
    monkeypatch.setattr(sitting, "RESULTS", results)
    source = ResultSource("learner", "make nothing", ("docs",), is_timed=False)

    def run(self: Sitting, words: Sequence[str]) -> int | None:
        part.write_text('{"partial": true, "steps_done": 1, "steps": 4}')

    monkeypatch.setattr(Sitting, "_run", run)
    held = Sitting(tmp_path / "a", tmp_path / "b", 600.0, sources={"learner": source})
    (tmp_path / "b").mkdir()
    assert held.measure(rerun_of(source)) == "was ended, since the time was over"
    assert {file.name: file.read_text() for file in results.iterdir()} == ({part.name: old} if old else {})
    assert (tmp_path / "b" / part.name).is_file()


GREEN: dict[str, Any] = {"gate": {"green": True, "failures": []}, "use": USE}
NO_GATE = {"use": USE}
RED = GREEN | {"gate": {"green": False, "failures": ["a token differs"]}}


def sitting_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reports: Mapping[str, Mapping[str, Any]], code: int | None
) -> tuple[Sitting, Rerun, list[Sequence[str]]]:
    """A command `make both` that leaves these reports and ends with this code. What is run is noted in the list."""
    sources = {name: ResultSource(name, "make both", ("nowhere",), is_timed=True) for name in ("one", "other")}
    runs: list[Sequence[str]] = []
    unfinished = folder / "unfinished"
    for made in (unfinished, folder / "results"):
        made.mkdir()

    def run(self: Sitting, words: Sequence[str]) -> int | None:
        runs.append(words)
        for name, report in reports.items():
            (unfinished / f"{name}.json").write_text(json.dumps(as_of_today(report)))
        return code

    monkeypatch.setattr(Sitting, "_run", run)
    both = Rerun("make both", ("one", "other"), 5.0, True, NEVER)
    return Sitting(folder / "results", unfinished, 600.0, sources=sources), both, runs


def as_of_today(report: Mapping[str, Any]) -> dict[str, Any]:
    return {**report, "machine": {"commit": head(), "changed": [], "cores": 2}}


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@NEEDS_HISTORY
@pytest.mark.parametrize(
    ("reports", "code", "recorded", "failure"),
    [
        ({"one": GREEN, "other": GREEN}, 0, ["one.json", "other.json"], None),
        ({"one": GREEN, "other": GREEN}, 1, ["one.json", "other.json"], None),
        ({"one": GREEN, "other": RED}, 1, ["one.json"], "other is refused: its gate is red: a token differs"),
        ({"one": GREEN, "other": NO_GATE}, 2, ["one.json"], "other is refused: exit code 2"),
        ({"one": GREEN, "other": NO_GATE}, 0, ["one.json", "other.json"], None),
        ({"one": GREEN}, 1, ["one.json"], "wrote no other.json, exit code 1"),
        ({"one": GREEN, "other": GREEN}, None, ["one.json", "other.json"], None),
        ({"one": GREEN}, None, ["one.json"], "was ended, since the time was over"),
        ({}, None, [], "was ended, since the time was over"),
        (
            {"one": GREEN, "other": NO_GATE},
            None,
            ["one.json"],
            "other is refused: it has no gate, and its command was ended",
        ),
        ({"one": GREEN, "other": GREEN | {"partial": True}}, None, ["one.json"], "other is refused: it is a part of"),
    ],
)
def test_each_result_is_judged_by_its_own_gate_and_by_the_exit_code_where_it_has_none(
    reports: dict[str, dict[str, Any]],
    code: int | None,
    recorded: list[str],
    failure: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None is the code of a command that the deadline ended. What was whole by then is no less whole."""
    held, both, _ = sitting_of(tmp_path, monkeypatch, reports, code)
    found = held.measure(both)
    assert found == failure if found is None or failure is None else found.startswith(failure)
    assert names_in(tmp_path / "results") == recorded
    noted = read_noted(tmp_path / "unfinished").keys()
    assert noted == ({"one", "other"} - reports.keys() if code is None else set())


@NEEDS_HISTORY
def test_what_an_earlier_sitting_left_is_recorded_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sitting that is killed behind a run judges nothing."""
    held, both, runs = sitting_of(tmp_path, monkeypatch, {"one": GREEN, "other": GREEN}, 0)
    for name in both.names:
        (tmp_path / "unfinished" / f"{name}.json").write_text(json.dumps(as_of_today(GREEN)))
    assert held.measure(both) is None
    assert (runs, names_in(tmp_path / "results")) == ([], ["one.json", "other.json"])


@NEEDS_HISTORY
@pytest.mark.parametrize(
    ("left", "refused"),
    [
        (json.dumps(as_of_today(RED)) if has_history() else "", ["other.refused.json"]),
        (json.dumps(as_of_today({"gate": GREEN["gate"]})) if has_history() else "", []),
        ('{"gate": {"green": tr', []),
    ],
)
def test_what_was_left_and_may_not_be_recorded_is_measured_again(
    left: str, refused: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is red, or nobody knows how busy the machine was, or its process was killed while it wrote."""
    held, both, runs = sitting_of(tmp_path, monkeypatch, {"one": GREEN, "other": GREEN}, 0)
    (tmp_path / "unfinished/one.json").write_text(json.dumps(as_of_today(GREEN)))
    (tmp_path / "unfinished/other.json").write_text(left)
    assert held.measure(both) is None
    assert (len(runs), names_in(tmp_path / "results")) == (1, ["one.json", "other.json"])
    assert names_in(tmp_path / "unfinished") == refused


def test_no_target_of_make_writes_its_result_where_a_sitting_does_not_look() -> None:
    """`make gpu` has a folder of its own, for who measures on a card and keeps no checkout of results."""
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--json bench-results/gpu.json" in made
    for source in find_sources().values():
        if source.command.startswith("make "):
            recipe = re.findall(rf"^{source.command.removeprefix('make ')}:.*\n((?:\t.*\n)+)", made, re.MULTILINE)
            assert recipe, source.name
            written = re.findall(r"--json (\S+)", "".join(recipe))
            assert set(written) <= {f"benchmarks/results/{source.name}.json"}, source.name


def test_a_benchmark_goes_on_where_it_was_ended_on_the_same_commit(tmp_path: Path) -> None:
    command = find_sources()["precompute-paired"].command
    file = tmp_path / "precompute-paired.json"
    anew = [sys.executable, "-m", "acmserve", "bench", "precompute", "--json", str(file)]
    assert words_of(command, file) == anew
    here = describe_machine()
    for machine, more in ((here, ["--resume"]), ({"commit": "0" * 40}, [])):
        partial_file(file).write_text(json.dumps({"partial": True, "machine": machine}))
        assert words_of(command, file) == anew + more
    for odd in ('{"partial": true}', "[]", '{"machine"'):
        partial_file(file).write_text(odd)
        assert words_of(command, file) == anew
    assert words_of("make soak", tmp_path / "soak.json") == ["make", "soak"]
    load = tmp_path / "trace-4.json"
    partial_file(load).write_text(json.dumps({"partial": True, "machine": here}))
    assert words_of(find_sources()["trace-4"].command, load)[-3:] == ["--json", str(load), "--resume"]
    hops = [sys.executable, "-m", "benchmarks.micro.rotation_error", "--json", str(tmp_path / "hops.json")]
    assert words_of(HOPS.command, tmp_path / "hops.json") == hops
