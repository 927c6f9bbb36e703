"""What has to be measured again: by what paths it is stale, times before counts, and nothing that is current."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.provenance.code_state import CURRENT
from acmserve.bench.report import reruns
from acmserve.bench.report.ledger import LedgerRow, make_row
from acmserve.bench.report.rerun_plan import NEVER, Rerun, next_rerun, plan_reruns, rerun_lines, sittings_line
from acmserve.bench.report.reruns import main
from acmserve.bench.report.sitting import Sitting
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


def test_what_needs_a_quiet_machine_comes_first_and_a_command_that_makes_two_files_is_told_once(
    rows: dict[str, LedgerRow], tmp_path: Path
) -> None:
    found = plan_reruns(rows, SOURCES, tmp_path)
    assert [one.command for one in found] == ["bench missing", "bench times", "bench long", "bench counts"]
    missing, times, long, counts = found
    assert (counts.why, counts.seconds, counts.is_timed) == ("product 2, kernels 1", None, False)
    assert (times.names, times.why, times.seconds) == (("times", "both"), "product 2", 150.0)
    assert (long.seconds, missing.why, missing.seconds) == (600.0, NEVER, None)
    assert rows["fresh"].state == CURRENT


def test_minutes_are_added_up_where_they_are_recorded(rows: dict[str, LedgerRow], tmp_path: Path) -> None:
    lines = rerun_lines(plan_reruns(rows, SOURCES, tmp_path), "AVX2")
    assert lines[2].split() == ["2:30", "min", "quiet", "bench", "times"]
    assert lines[3].strip() == "times, both: product 2"
    assert lines[-2:] == [
        "a quiet machine: 12:30 min in 2 of 3 that recorded it",
        "any machine: 0 s in 0 of 1 that recorded it",
    ]


def test_all_minutes_are_told_as_sittings_and_what_needs_a_gpu_is_none_of_them() -> None:
    waiting = [made("times", 6000.0, True), made("count", 4201.0, False), made("unknown", None, True)]
    card = replace(made("card", 9000.0, True), needs_gpu=True)
    told = "170 minutes in 2 of 3 that recorded it, at least 2 sittings of 170 minutes"
    assert sittings_line([*waiting, card], "AVX2") == f"without a GPU, on this kind of processor: {told}"
    assert sittings_line([made("times", 10_200.0, True)], "AVX2").endswith("at least 1 sitting of 170 minutes")
    lines = rerun_lines([*waiting, card], "AVX2")
    assert lines[6].split()[2:] == ["gpu", "card"]
    assert lines[-3:] == [
        "a machine with a GPU: 150:00 min in 1 of 1 that recorded it",
        "a quiet machine: 100:00 min in 1 of 2 that recorded it",
        "any machine: 70:01 min in 1 of 1 that recorded it",
    ]


@pytest.mark.parametrize(("vectors", "own", "other"), [("AMX", 20, 10), ("AVX2", 10, 20), (None, 10, 20)])
def test_no_sum_counts_what_another_kind_of_processor_makes(vectors: str | None, own: int, other: int) -> None:
    """It is listed with its command, and has a sum of its own. A card in such a machine is none of this one."""
    kinds = [replace(made("edit", 600.0 * (1 + amx), True), with_amx=amx) for amx in (False, True)]
    cards = [replace(one, needs_gpu=True) for one in kinds]
    lines = rerun_lines([*kinds, made("count", 60.0, False)], vectors)
    assert sum(line.endswith("  edit") for line in lines) == 2
    assert lines[-3:] == [
        f"another kind of processor: {other}:00 min in 1 of 1 that recorded it",
        f"a quiet machine: {own}:00 min in 1 of 1 that recorded it",
        "any machine: 60 s in 1 of 1 that recorded it",
    ]
    assert f" {own + 1} minutes in 2 of 2 " in sittings_line([*kinds, made("count", 60.0, False)], vectors)
    assert f"a machine with a GPU: {own}:00 min in 1 of 1 that recorded it" in rerun_lines(cards, vectors)
    assert not any("another kind" in line for line in rerun_lines([made("count", 60.0, False)], vectors))


@pytest.mark.parametrize("is_there", [True, False])
def test_what_needs_a_gpu_is_left_out_where_there_is_none_and_that_is_no_failure(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a GPU the two are tried, and fail here, as they did before they were left out."""
    tried: list[str] = []

    def measure(self: Sitting, one: Rerun) -> str | None:
        tried.extend(one.names)
        return "there is no card"

    monkeypatch.setattr(Sitting, "measure", measure)
    monkeypatch.setattr(reruns, "UNFINISHED", tmp_path / "unfinished")
    monkeypatch.setattr(reruns, "has_gpu", lambda: is_there)
    monkeypatch.setattr(reruns, "Sitting", partial(Sitting, is_quiet=lambda: True))
    asked = ["--run", "--only", "gpu", "gpu-kernel", "--results", str(tmp_path), "--max-minutes", "600"]
    assert main(asked) == int(is_there)
    assert sorted(tried) == (["gpu", "gpu-kernel"] if is_there else [])
    shown = capsys.readouterr().out
    assert ("Left out, since no CUDA device is here: gpu-kernel, gpu." in shown) is not is_there


def test_some_alone_are_planned_and_others_may_know_how_long_they_take(
    rows: dict[str, LedgerRow], tmp_path: Path
) -> None:
    (counts,) = plan_reruns(rows, SOURCES, tmp_path, only=("fresh", "counts"), took={"counts": 90.0})
    assert (counts.names, counts.why, counts.seconds) == (("counts",), "product 2, kernels 1", 90.0)


def test_what_a_source_expects_counts_where_nothing_was_recorded(rows: dict[str, LedgerRow], tmp_path: Path) -> None:
    expecting = {name: replace(source, minutes=30) for name, source in SOURCES.items() if name in ("times", "counts")}
    found = {one.command: one for one in plan_reruns(rows, SOURCES | expecting, tmp_path)}
    assert (found["bench times"].seconds, found["bench counts"].seconds) == (150.0, 1800.0)
    assert next(iter(found)) == "bench missing", "while much time is left"
    known = plan_reruns(rows, SOURCES | expecting, tmp_path, took={"counts": 90.0})
    assert [one.seconds for one in known if one.command == "bench counts"] == [90.0]


def made(command: str, seconds: float | None, is_timed: bool) -> Rerun:
    return Rerun(command, (command,), seconds, is_timed, NEVER)


@pytest.mark.parametrize(
    ("seconds_left", "is_quiet", "chosen"),
    [
        (5000.0, True, "times"),
        (5000.0, False, "count"),
        (400.0, True, "times"),
        (399.0, True, "count"),
        (1000.0, False, "count"),
        (100.0, True, None),
    ],
)
def test_the_next_one_fits_into_the_time_and_needs_no_quieter_machine(
    seconds_left: float, is_quiet: bool, chosen: str | None
) -> None:
    """A run of 295 s may take 339, and a minute to start. One of 50 may take 117."""
    waiting = [made("times", 295.0, True), made("long", 3000.0, True), made("count", 50.0, False)]
    found = next_rerun(waiting, seconds_left, lambda: is_quiet)
    assert (found and found.command) == chosen


def test_what_nobody_knows_the_time_of_needs_ten_minutes() -> None:
    waiting = [made("unknown", None, True)]
    assert next_rerun(waiting, 600.0, lambda: True) == waiting[0]
    assert next_rerun(waiting, 599.0, lambda: True) is None


def test_the_state_says_it_where_no_path_does(tmp_path: Path, rows: dict[str, LedgerRow]) -> None:
    rows["times"] = make_row(TIMES, {}, tmp_path)
    found = {one.command: one.why for one in plan_reruns(rows, SOURCES, tmp_path)}
    assert found["bench times"] == "commit not recorded, product 2"


def test_counts_alone_are_told_where_a_machine_is_never_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--results", str(tmp_path), "--only", "identity", "commits"]
    assert main(asked) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[::2]][:2] == ["quiet", "any"]
    assert main([*asked, "--counts"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith("  any    acmserve bench commits")


def test_every_command_of_a_stale_result_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert re.fullmatch(r"without a GPU, .*: \S+ minutes in .* sittings? of 170 minutes", shown.splitlines()[-1])
    missing = {"memory", "llama", "scale"} - {file.stem for file in (Path("benchmarks/results")).glob("*.json")}
    assert all(find_sources()[name].command in shown for name in missing)
