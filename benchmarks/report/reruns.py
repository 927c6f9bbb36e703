"""`acmserve bench reruns`: what is stale, by which paths, and what it takes to measure it again. `--run` measures it.

With `--run` each result is recorded when it is done, and what is left is told at the end. So the same command goes on
in the next sitting. Whatever cannot end before `--max-minutes` does not begin. What needs a CUDA device is left out
where there is none, and what another kind of processor makes. That is said.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import vectors_here
from acmserve.bench.harness.options import minutes
from acmserve.bench.provenance.code_state import ROOT
from acmserve.bench.report.all import RESULTS
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.rerun_plan import (
    Rerun,
    of_processor,
    plan_reruns,
    rerun_lines,
    sittings_line,
    without_gpu,
)
from acmserve.bench.report.sitting import Sitting, read_noted
from acmserve.bench.report.sources import find_sources

UNFINISHED = ROOT / "bench-results" / "unfinished"
"""What is measured and not recorded. Git ignores it."""


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench reruns`. With `--run` 1 where a result was refused. Else 0, whatever is stale."""
    options = _parser().parse_args(argv)
    reruns, vectors = _plan(options), vectors_here()
    if not options.run:
        print("\n".join([*rerun_lines(reruns, vectors), sittings_line(reruns, vectors)]))
        return 0
    reruns, other = of_processor(reruns, vectors)
    told = ""
    if not has_gpu():
        reruns, told = without_gpu(reruns)
    seconds = math.inf if options.max_minutes is None else 60 * options.max_minutes
    sitting = Sitting(options.results, UNFINISHED, seconds)
    try:
        sitting.hold(reruns)
    finally:
        print("\n".join([*sitting.summary(), *filter(None, [told, other])]), flush=True)
    return 1 if any(one.failure for one in sitting.ended) else 0


def has_gpu() -> bool:
    """Whether the driver of NVIDIA has a device here."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _plan(options: argparse.Namespace) -> list[Rerun]:
    """How long each takes is told by the folder of results, by the committed ones, or by one that was ended.

    The longest counts: what was ended here takes longer here than where it was recorded.
    """
    sources, committed = find_sources(), read_ledger()
    rows = committed if options.results == RESULTS else read_ledger(options.results)
    took = read_noted(UNFINISHED)
    for name, row in committed.items():
        took[name] = max(took.get(name, 0.0), row.seconds or 0.0)
    took = {name: seconds for name, seconds in took.items() if seconds}
    found = plan_reruns(rows, sources, took=took, only=options.only)
    return [one for one in found if not (options.counts and one.is_timed)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench reruns",
        description="Prints each command whose results are stale or missing: minutes that it took, whether it needs a "
        "quiet machine, and how many files changed below each path that it measures. With --run it measures them, "
        "those first that need a quiet machine. The same command goes on where it was ended.",
    )
    add = parser.add_argument
    add("--run", action="store_true", help="measure them, and record each when it is done and may be recorded")
    add("--max-minutes", type=minutes, metavar="N", help="with --run: nothing goes on behind them")
    add("--counts", action="store_true", help="only what may be measured beside other work")
    add("--only", nargs="+", default=(), choices=list(find_sources()), metavar="NAME", help="of these alone")
    told = "the results that may be stale, and where new ones go (default: those of the checkout)"
    add("--results", type=Path, default=RESULTS, metavar="DIR", help=told)
    return parser


BENCHMARK = Benchmark(
    "reruns",
    "what to measure again: why, for how long, and on which machine; --run measures it",
    main,
    takes_limit=True,
)
