"""`acmserve bench all`: every benchmark, each in a process of its own, its JSON and its plot into one folder.

What each run took is told first, as far as the committed result says so. A run that fails does not stop the others: its
name is said at the end and the exit code is 1. What is run is what every `BENCHMARK` lists in `runs`. With `--quick`
only the runs that have a quick way. What another kind of processor makes is left out, and that is said.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun, find_benchmarks
from acmserve.bench.harness.machine import is_of_processor, left_out_line, vectors_here
from acmserve.bench.harness.options import partial_file
from acmserve.bench.harness.run_log import counted, duration, progress

DEFAULT_FOLDER = "bench-results"
RESULTS = Path(__file__).resolve().parents[1] / "results"
_MISSED = "exit code 1: its gate was red, or a limit was missed"


@dataclass(frozen=True, slots=True)
class EndedRun:
    """How a run ended: `failure` None is success."""

    run: BenchmarkRun
    seconds: float
    failure: str | None


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench all`. Returns 0 when every run passed, 1 when one did not."""
    runs = all_runs()
    options = _parser([run.name for run in runs]).parse_args(argv)
    chosen, left_out = chosen_runs(runs, vectors_here(), options.only, is_quick=options.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    print("\n".join([*recorded(chosen), *filter(None, [left_out])]), flush=True)
    ended = []
    for number, run in enumerate(chosen, start=1):
        command = shlex.join(command_of(run, options.quick))
        print(f"\n== {counted(number, len(chosen), command)}", flush=True)
        ended.append(run_one(run, options.out, options.quick))
        progress(f"== {run.name}: {ended[-1].failure or 'done'} after {duration(ended[-1].seconds)}")
    print("\n".join([*summary(ended, options.out, options.quick), *filter(None, [left_out])]))
    return 1 if any(one.failure for one in ended) else 0


def all_runs() -> list[BenchmarkRun]:
    """Those of every benchmark."""
    return [run for file in find_benchmarks().values() for run in file.load().runs]


def chosen_runs(
    runs: Sequence[BenchmarkRun], vectors: str | None, only: Collection[str] = (), *, is_quick: bool = False
) -> tuple[list[BenchmarkRun], str]:
    """Those of these names, () for all, and a sentence about what another kind of processor makes, "" for nothing."""
    wanted = [run for run in runs if (run.name in only if only else run.quick or not is_quick)]
    own = [run for run in wanted if is_of_processor(run.with_amx, vectors)]
    return own, left_out_line([run.name for run in wanted if run not in own])


def recorded(runs: Sequence[BenchmarkRun], folder: Path = RESULTS) -> list[str]:
    """How long each run took where it was recorded, and the sum of those."""
    took = {run.name: _seconds(folder / f"{run.name}.json") for run in runs}
    known = [seconds for seconds in took.values() if seconds is not None]
    lines = [f"{name:<22}{'not recorded' if s is None else duration(s):>13}" for name, s in took.items()]
    return [*lines, f"{duration(sum(known))} in {len(known)} of {len(took)} runs that recorded it"]


def _seconds(file: Path) -> float | None:
    report = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    seconds: float | None = report.get("use", {}).get("seconds")
    return seconds


def command_of(run: BenchmarkRun, is_quick: bool) -> tuple[str, ...]:
    """What a person types, without where results go."""
    return ("acmserve", "bench", *(run.quick if is_quick and run.quick else run.arguments))


def run_one(run: BenchmarkRun, folder: Path, is_quick: bool) -> EndedRun:
    """Run one in a process of its own, which prints where this one does. A missing report is a failure, too."""
    report = folder / f"{run.name}.json"
    for old in (report, partial_file(report), report.with_suffix(".png")):
        old.unlink(missing_ok=True)
    files = ["--json", str(report), *(("--plot", str(report.with_suffix(".png"))) if run.can_plot else ())]
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", *command_of(run, is_quick), *files])
    try:
        code = process.wait()
    finally:
        # It ends its own servers, and has time for it.
        process.terminate()
        process.wait()
    failure = (_MISSED if code == 1 else f"failed with exit code {code}") if code else None
    if failure is None and not report.is_file():
        failure = f"wrote no {report.name}"
    return EndedRun(run, time.monotonic() - started, failure)


def summary(ended: Sequence[EndedRun], folder: Path, is_quick: bool) -> list[str]:
    """A line for each run with the command that repeats it, then the ones that failed."""
    lines = ["", f"{'':<17}{'took':>9}  command"]
    for one in ended:
        mark = "" if one.failure is None else f"  ({one.failure})"
        command = shlex.join(command_of(one.run, is_quick))
        lines.append(f"{one.run.name:<17}{duration(one.seconds):>9}  {command}{mark}")
    lines += ["", f"{duration(sum(one.seconds for one in ended))} in all; reports and plots in {folder}"]
    failed = [one.run.name for one in ended if one.failure]
    return [*lines, f"FAILED: {', '.join(failed)}" if failed else "every run passed" if ended else "nothing was run"]


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench all",
        description="Runs every benchmark, each in a process of its own, and keeps its JSON and plot in one folder. "
        "One that fails does not stop the others. Takes over eleven hours on two cores, with --quick 25 minutes; leave "
        "the machine alone meanwhile.",
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions of what the README quotes")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(DEFAULT_FOLDER),
        metavar="DIR",
        help=f"folder of reports and plots, made where there is none (default: {DEFAULT_FOLDER})",
    )
    parser.add_argument(
        "--only", nargs="+", default=(), choices=names, metavar="NAME", help=f"some of: {', '.join(names)}"
    )
    return parser


BENCHMARK = Benchmark("all", "every benchmark, each in a process of its own, into one folder", main)
