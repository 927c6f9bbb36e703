"""What was measured goes on being counted while no path changes that it measures, whatever else is committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from acmserve.bench.harness.machine import commit_of
from acmserve.bench.harness.options import partial_file
from acmserve.bench.precompute.rounds import kept_rounds
from acmserve.bench.provenance.code_state import is_same_code
from acmserve.bench.report import sitting
from acmserve.bench.report.sitting import words_of
from acmserve.bench.report.sources import find_sources
from acmserve.errors import AcmError

MEASURED, OTHER = "acmserve/server/app.py", "docs/page.md"


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
    then = commit_of(checkout)[0]
    now = commit(checkout, file, "two")
    kept = {"machine": {"commit": then, "changed": []}, "rounds_of": {"policy": "cwl"}}
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
        with pytest.raises(AcmError, match="the result to resume is of"):
            kept_rounds(kept, {"policy": "cwl"}, now, checkout)


def test_the_same_commit_is_the_same_code_also_where_git_tells_none(checkout: Path) -> None:
    paths = ("acmserve/server",)
    assert is_same_code({"commit": None}, None, paths, checkout)
    assert not is_same_code({"commit": None}, commit_of(checkout)[0], paths, checkout)
    then = commit_of(checkout)[0]
    (checkout / MEASURED).write_text("not committed", encoding="utf-8")
    assert not is_same_code({"commit": then, "changed": []}, commit_of(checkout)[0], paths, checkout)
