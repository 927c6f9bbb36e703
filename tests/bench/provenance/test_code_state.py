"""What was measured goes on being counted while no path changes that it measures, whatever else is committed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acmserve.bench.eval.bench import _journal
from acmserve.bench.eval.schedule.journal import Journal
from acmserve.bench.harness.options import partial_file
from acmserve.bench.precompute.rounds import kept_rounds
from acmserve.bench.provenance.code_state import commit_of, is_same_code
from acmserve.bench.provenance.same_run import SAME_MACHINE
from acmserve.bench.report import sitting
from acmserve.bench.report.sitting import words_of
from acmserve.bench.report.sources import find_sources
from acmserve.bench.trace.kept import KeptRepetitions
from acmserve.errors import AcmError
from tests.support.docs.pages import ROOT
from tests.support.soak import report as soak

MEASURED, OTHER = "acmserve/server/app.py", "docs/page.md"
PLAYED: dict[str, Any] = {"task": "mrcr", "sample": "1", "way": "tools", "score": 1.0, "answer": "yes"}


def commit(folder: Path, file: str, text: str) -> str:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text, encoding="utf-8")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", text], check=True)
    told = commit_of(folder)[0]
    assert told is not None
    return told


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "-C", str(tmp_path), "init", "--quiet"], check=True)
    commit(tmp_path, MEASURED, "one")
    return tmp_path


@pytest.mark.parametrize(("file", "goes_on"), [(OTHER, True), (MEASURED, False)])
def test_rounds_are_kept_over_a_commit_that_changes_nothing_that_they_measure(
    file: str, goes_on: bool, checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sitting asks for `--resume` exactly where the benchmark takes the rounds."""
    then = {"commit": commit_of(checkout)[0], "changed": [], **dict.fromkeys(SAME_MACHINE, "c")}
    now = then | {"commit": commit(checkout, file, "two")}
    kept: dict[str, Any] = {"machine": then, "rounds_of": {"policy": "cwl"}}
    kept["rounds"] = [{"number": 0, "failures": [], "use": {"seconds": 9.0}}]
    result = tmp_path_factory.mktemp("unfinished") / "precompute-paired.json"
    partial_file(result).write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(sitting, "ROOT", checkout)
    words = words_of(find_sources()["precompute-paired"].command, result)
    assert words[0] == sys.executable
    assert ("--resume" in words) is goes_on
    if goes_on:
        assert kept_rounds(kept, {"policy": "cwl"}, now, checkout) == kept["rounds"]
    else:
        with pytest.raises(AcmError, match="other code"):
            kept_rounds(kept, {"policy": "cwl"}, now, checkout)


@pytest.mark.parametrize(("file", "goes_on"), [(OTHER, True), (MEASURED, False)])
def test_a_trace_goes_on_over_such_a_commit(
    file: str, goes_on: bool, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = {"commit": commit_of(checkout)[0], "changed": [], "cpu": "c"}
    now = then | {"commit": commit(checkout, file, "two")}
    monkeypatch.setattr("acmserve.bench.trace.kept.describe_machine", lambda: dict.fromkeys(SAME_MACHINE) | now)
    report = {"machine": dict.fromkeys(SAME_MACHINE) | then, "repetitions_of": {}, "whole_repetitions": []}
    if goes_on:
        KeptRepetitions({}).resume(report, checkout)
    else:
        with pytest.raises(AcmError, match=r"other code: .*, now .*Begin anew without --resume"):
            KeptRepetitions({}).resume(report, checkout)


def test_the_same_commit_is_the_same_code_also_where_git_tells_none(checkout: Path) -> None:
    paths = ("acmserve/server",)
    assert is_same_code({"commit": None}, None, paths, checkout)
    assert not is_same_code({"commit": None}, commit_of(checkout)[0], paths, checkout)
    then = commit_of(checkout)[0]
    (checkout / MEASURED).write_text("not committed", encoding="utf-8")
    assert not is_same_code({"commit": then, "changed": []}, commit_of(checkout)[0], paths, checkout)


def test_a_modified_tree_is_the_same_code_while_nobody_writes_to_it(checkout: Path) -> None:
    """The commit says no more than that something was changed. What is measured must not have been, since."""
    paths = ("acmserve/server",)
    (checkout / MEASURED).write_text("not committed", encoding="utf-8")
    then, changed = commit_of(checkout)
    assert (then or "").endswith("+")
    told = {"commit": then, "changed": changed, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    assert is_same_code(told, then, paths, checkout)
    (checkout / OTHER).parent.mkdir()
    (checkout / OTHER).write_text("a page", encoding="utf-8")
    assert is_same_code(told, then, paths, checkout), "nothing measures that"
    assert not is_same_code({"commit": then, "changed": changed}, then, paths, checkout), "nobody knows since when"
    second = checkout / "acmserve/server/new.py"
    second.write_text("new", encoding="utf-8")
    assert not is_same_code(told, then, paths, checkout), "another measured file is changed"
    second.unlink()
    assert is_same_code(told, then, paths, checkout)
    later = time.time() + 60
    os.utime(checkout / MEASURED, (later, later))
    assert not is_same_code(told, then, paths, checkout), "the same file, written again"


def test_two_modified_trees_of_one_commit_are_two_codes(checkout: Path) -> None:
    paths = ("acmserve/server",)
    (checkout / OTHER).parent.mkdir()
    (checkout / OTHER).write_text("a page", encoding="utf-8")
    then = f"{commit_of(checkout)[0]}".removesuffix("+") + "+"
    told = {"commit": then, "changed": [MEASURED], "date": datetime.now(UTC).isoformat(timespec="seconds")}
    assert not is_same_code(told, then, paths, checkout), "a measured file was changed then, and is not now"
    assert is_same_code(told | {"changed": ["docs/other.md"]}, then, paths, checkout)


@pytest.mark.parametrize("file", [None, OTHER, MEASURED])
def test_samples_of_other_code_are_set_aside(
    file: str | None, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A page that is committed between two sittings changes nothing."""
    first = commit_of(checkout)[0]
    assert first is not None
    path = tmp_path_factory.mktemp("work") / "run.jsonl"
    begun = Journal(path, "run")
    begun.tell(1, {"machine": {"commit": first, "changed": []}})
    begun.add(PLAYED)
    if file is not None:
        commit(checkout, file, "two")
    found = _journal(path, "run", ("acmserve/server",), checkout)
    goes_on = file != MEASURED
    assert (len(found.records), len(found.sittings)) == ((1, 1) if goes_on else (0, 0))
    aside = path.with_name(f"run.{first[:8]}.jsonl")
    assert aside.is_file() is not goes_on
    if not goes_on:
        assert json.loads(aside.read_text(encoding="utf-8").splitlines()[-1]) == PLAYED
        assert Journal(path, "run").records == {}, "and what is there now begins anew"


def test_a_journal_that_nobody_began_or_that_tells_no_commit_goes_on(tmp_path: Path) -> None:
    """Outside of a checkout neither sitting has a commit."""
    path = tmp_path / "run.jsonl"
    assert _journal(path, "run", ("acmserve/server",), tmp_path).records == {}
    begun = Journal(path, "run")
    begun.tell(1, {"machine": {"commit": None}})
    begun.add(PLAYED)
    assert len(_journal(path, "run", ("acmserve/server",), tmp_path).records) == 1


@pytest.mark.parametrize(
    "file", ["tests/simulator/test_worst_step.py", "tests/server/app/test_victim.py", "tests/engine/test_audit.py"]
)
def test_a_test_that_records_asks_for_the_commit_before_it_measures(file: str) -> None:
    """What is committed in the meantime is other code than was measured."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    made = [
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and "describe_machine()" in ast.unparse(one)
    ]
    assert [ast.unparse(one.body[0]) for one in made] == ["machine = describe_machine()"]


def test_a_soak_is_of_the_commit_on_which_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(["first", "second"])
    monkeypatch.setattr("acmserve.bench.harness.machine.describe_machine", lambda: {"commit": next(commits)})
    monkeypatch.setattr(soak, "MINUTES", 30.0)
    monkeypatch.setattr(soak, "RESULT", tmp_path / "soak.json")
    report = soak.SoakReport()
    assert next(commits) == "second", "somebody commits"
    for number in range(soak.NUM_PHASES):
        report.add(
            str(number), SimpleNamespace(counts={"checked": soak.MIN_CHECKED}, largest_difference=0.0, mismatches=[])
        )
    report.write()
    assert json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))["machine"] == {"commit": "first"}
