"""`acmserve bench all`: every benchmark, each in a process of its own, its JSON and its plot into one folder.

A part that fails does not stop the others: its name is said at the end and the exit code is 1. What is run is the table
`PARTS`, and nothing else knows it: a new benchmark is a new row. With `--quick` the rows that have a quick way run it;
they are those that the README quotes times and scores of.

Not obvious: seconds of the table are what a part took on two cores, for the forecast only. It is scaled by how long the
parts so far took, so that it is of use on other machines, too.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.options import progress

DEFAULT_FOLDER = "bench-results"
QUICK_MINUTES = 15


@dataclass(frozen=True, slots=True)
class Part:
    """One run: what follows `acmserve bench`, and its seconds on two cores. `quick` None: not part of `--quick`.

    `name` is also the stem of its files.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: int
    quick: tuple[str, ...] | None = None
    quick_seconds: int = 0
    can_plot: bool = True

    def command(self, is_quick: bool) -> tuple[str, ...]:
        """What a person types, without where results go."""
        more = self.quick if is_quick and self.quick is not None else ()
        return ("acmserve", "bench", *self.arguments, *more)

    def expected(self, is_quick: bool) -> int:
        """Seconds on two cores."""
        return self.quick_seconds if is_quick else self.seconds


_QUICK = ("--quick",)
_MISSED = "exit code 1: its gate was red, or a limit was missed"
PARTS = (
    Part("edit", ("edit",), 480, _QUICK, 205),
    Part("edit-kinds", ("edit", "--kinds", "all"), 420),
    Part("edit-sweep", ("edit", "--sweep"), 2100),
    Part("edit-neighbours", ("edit", "--neighbours"), 300),
    Part("trace", ("trace",), 3600, _QUICK, 305),
    Part("kernel", ("kernel",), 60, _QUICK, 10, can_plot=False),
    Part("fidelity", ("fidelity",), 5400, _QUICK, 140),
    Part("tasks", ("tasks",), 2400, _QUICK, 160),
    Part("tasks-gemma3", ("tasks", "--model", "gemma3"), 2400),
    Part("budget", ("budget",), 420),
    Part("budget-pass", ("budget-pass",), 30, can_plot=False),
    Part("map", ("map",), 120),
    Part("search", ("search",), 30, _QUICK, 5, can_plot=False),
    Part("sculptor", ("sculptor",), 300),
    Part("step", ("step",), 120, can_plot=False),
    Part("precompute", ("precompute",), 900),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part ended: `failure` None is success."""

    part: Part
    seconds: float
    failure: str | None


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench all`; 0 when every part passed, 1 when one did not."""
    options = _parser().parse_args(argv)
    parts = choose(options.only, options.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    ended = run_parts(parts, options.out, options.quick)
    print("\n".join(summary(ended, options.out, options.quick)))
    return 1 if any(one.failure for one in ended) else 0


def choose(only: Sequence[str], is_quick: bool) -> list[Part]:
    """The parts to run, in the order of the table; a benchmark's name stands for all parts of it.

    Under `--quick` those with a quick way, and those that were asked for by name.
    """
    if only:
        return [part for part in PARTS if part.name in only or part.arguments[0] in only]
    return [part for part in PARTS if not is_quick or part.quick is not None]


def run_parts(parts: Sequence[Part], folder: Path, is_quick: bool) -> list[Ended]:
    """Run one after the other; a failure is kept, not raised."""
    ended: list[Ended] = []
    for number, part in enumerate(parts, start=1):
        left = forecast(ended, parts, is_quick)
        first = part.expected(is_quick) * _pace(ended, is_quick)
        print(f"\n== {number} of {len(parts)}: {shlex.join(part.command(is_quick))}", flush=True)
        progress(f"== {part.name}: about {duration(first)}; about {duration(left)} left in all")
        ended.append(run_part(part, folder, is_quick))
        took = duration(ended[-1].seconds)
        progress(f"== {part.name}: {ended[-1].failure or 'done'} after {took}")
    return ended


def run_part(part: Part, folder: Path, is_quick: bool) -> Ended:
    """Run one part in a process of its own, which prints where this one does. A missing report is a failure, too."""
    report = folder / f"{part.name}.json"
    for old in (report, report.with_suffix(".png")):
        old.unlink(missing_ok=True)
    files = ["--json", str(report), *(("--plot", str(report.with_suffix(".png"))) if part.can_plot else ())]
    command = [sys.executable, "-m", *part.command(is_quick), *files]
    started = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    failure = (_MISSED if code == 1 else f"failed with exit code {code}") if code else None
    if failure is None and not report.is_file():
        failure = f"wrote no {report.name}"
    return Ended(part, time.monotonic() - started, failure)


def forecast(ended: Sequence[Ended], parts: Sequence[Part], is_quick: bool) -> float:
    """Seconds that the parts that have not run will take, at the pace of those that have."""
    return _pace(ended, is_quick) * sum(part.expected(is_quick) for part in parts[len(ended) :])


def _pace(ended: Sequence[Ended], is_quick: bool) -> float:
    """Seconds for each expected second; a part that failed tells nothing about the machine."""
    told = [one for one in ended if one.failure is None and one.part.expected(is_quick)]
    expected = sum(one.part.expected(is_quick) for one in told)
    return sum(one.seconds for one in told) / expected if expected else 1.0


def summary(ended: Sequence[Ended], folder: Path, is_quick: bool) -> list[str]:
    """A line for each part with the command that repeats it; then the ones that failed."""
    lines = ["", f"{'':<17}{'took':>9}  command"]
    for one in ended:
        mark = "" if one.failure is None else f"  ({one.failure})"
        command = shlex.join(one.part.command(is_quick))
        lines.append(f"{one.part.name:<17}{duration(one.seconds):>9}  {command}{mark}")
    total = sum(one.seconds for one in ended)
    lines += [
        "",
        f"{duration(total)} in all; reports and plots in {folder}; `acmserve bench report {folder}` shows them",
    ]
    failed = [one.part.name for one in ended if one.failure]
    return [*lines, f"FAILED: {', '.join(failed)}"] if failed else [*lines, "every part passed"]


def duration(seconds: float) -> str:
    """`42 s` or `7:05 min`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60}:{whole % 60:02} min"


def _parser() -> argparse.ArgumentParser:
    minutes = sum(part.seconds for part in PARTS) / 60
    names = list(dict.fromkeys([*(part.arguments[0] for part in PARTS), *(part.name for part in PARTS)]))
    parser = argparse.ArgumentParser(
        prog="acmserve bench all",
        description="Runs every benchmark, each in a process of its own, and keeps its JSON and plot in one folder. "
        f"One that fails does not stop the others. Takes {minutes / 60:.0f} hours on two cores, with --quick "
        f"{QUICK_MINUTES} minutes; leave the machine alone meanwhile. `acmserve bench report FOLDER` makes a page of "
        "the folder.",
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions of what the README quotes")
    parser.add_argument(
        "--out",
        "--json-dir",
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
