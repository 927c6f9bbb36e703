"""What has to be measured again: by what paths it is stale, counts before times, and nothing that is current."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.report.ledger import CURRENT, LedgerRow, make_row
from acmserve.bench.report.reruns import NEVER, main, plan_reruns, rerun_lines
from acmserve.bench.report.sources import ResultSource, find_sources

COUNTS = ResultSource("counts", "bench counts", ("product", "kernels"), is_timed=False)
TIMES = ResultSource("times", "bench times", ("product",))
LONG = ResultSource("long", "bench long", ("product",))
BOTH = ResultSource("both", "bench times", ("product",))
FRESH = ResultSource("fresh", "bench fresh", ("docs",))
MISSING = ResultSource("missing", "bench missing", ("product",))
SOURCES = {one.name: one for one in (TIMES, LONG, BOTH, COUNTS, FRESH, MISSING)}


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, text: str, *files: str) -> str:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "some")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, LedgerRow]:
    """Everything was measured on the first commit, behind which two files of the product and a kernel changed."""
    git(tmp_path, "init", "--quiet")
    measured = commit(tmp_path, "one", "product/plan.py", "product/engine.py", "kernels/copy.py", "docs/page.md")
    commit(tmp_path, "two", "product/plan.py", "product/engine.py", "kernels/copy.py")
    seconds = {"times": 150.0, "long": 600.0, "both": None, "counts": None, "fresh": 5.0}
    made = {}
    for name, took in seconds.items():
        report: dict[str, Any] = {"machine": {"commit": measured, "cores": 1, "load": 0.0, "changed": []}}
        made[name] = make_row(SOURCES[name], report | ({"use": {"seconds": took}} if took else {}), tmp_path)
    return made


def test_counts_come_first_and_a_command_that_makes_two_files_is_told_once(
    rows: dict[str, LedgerRow], tmp_path: Path
) -> None:
    found = plan_reruns(rows, SOURCES, tmp_path)
    assert [one.command for one in found] == ["bench counts", "bench times", "bench long", "bench missing"]
    counts, times, long, missing = found
    assert (counts.why, counts.seconds, counts.is_timed) == ("product 2, kernels 1", None, False)
    assert (times.names, times.why, times.seconds) == (("times", "both"), "product 2", 150.0)
    assert (long.seconds, missing.why, missing.seconds) == (600.0, NEVER, None)
    assert rows["fresh"].state == CURRENT


def test_minutes_are_added_up_where_they_are_recorded(rows: dict[str, LedgerRow], tmp_path: Path) -> None:
    lines = rerun_lines(plan_reruns(rows, SOURCES, tmp_path))
    assert lines[2].split() == ["2:30", "min", "quiet", "bench", "times"]
    assert lines[3].strip() == "times, both: product 2"
    assert lines[-2:] == [
        "any machine: 0 s in 0 of 1 that recorded it",
        "a quiet machine: 12:30 min in 2 of 3 that recorded it",
    ]


def test_the_state_says_it_where_no_path_does(tmp_path: Path, rows: dict[str, LedgerRow]) -> None:
    rows["times"] = make_row(TIMES, {}, tmp_path)
    found = {one.command: one.why for one in plan_reruns(rows, SOURCES, tmp_path)}
    assert found["bench times"] == "commit not recorded, product 2"


def test_every_command_of_a_stale_result_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    missing = {"memory", "llama", "scale"} - {file.stem for file in (Path("benchmarks/results")).glob("*.json")}
    assert all(find_sources()[name].command in shown for name in missing)
