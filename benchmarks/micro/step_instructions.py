"""`acmserve bench step-instructions`: what a request without session pays for the plugin, in retired instructions.

A clock cannot tell 1 % of a scheduler step on a shared machine (`bench_step.py`). Valgrind counts the instructions of
the same steps, Python's own included, whatever else the machine does.

The layout of memory changes a count by some thousandths, so every column is counted under several seeds of hashes. The
interval is Student's, over the ratios of seeds.

The gate: every column schedules the tokens that a stock scheduler schedules, and two counts of one seed agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.estimates import student_ratio_interval
from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import count, interval
from acmserve.bench.harness.options import add_report_options, as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.micro.bench_step import COLUMNS, NUM_REQUESTS
from acmserve.bench.micro.counted_steps import NUM_STEPS
from acmserve.bench.micro.instructions import count_instructions
from acmserve.bench.provenance.measured import STEP

SEEDS = (0, 0, 1, 2, 3, 4)
"""Of hashes, a process each. The first two are the same, for the gate, and count once."""
NUM_COUNTS = SEEDS.count(SEEDS[0])
MAX_APART = 0.001
_PROGRAM = "acmserve.bench.micro.counted_steps"


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench step-instructions`. Returns 1 at a red gate. Raises AcmError without Valgrind."""
    return run_benchmark(_parser(), argv, lambda options: measure(), STEPS)


def measure() -> dict[str, Any]:
    """Every column in processes of its own, in turn, seed after seed."""
    totals: dict[str, list[int]] = {column: [] for column in COLUMNS}
    scheduled: dict[str, list[Any]] = {}
    cases = [(seed, column) for seed in SEEDS for column in COLUMNS]
    for number, (seed, column) in enumerate(cases, start=1):
        progress(counted(number, len(cases), f"{column}, seed {seed}"))
        with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
            total, said = count_instructions(_PROGRAM, [column], Path(folder), seed)
        totals[column].append(total)
        scheduled.setdefault(column, []).append(json.loads(said.splitlines()[-1]))
    return as_report(totals, scheduled)


def as_report(totals: Mapping[str, Sequence[int]], scheduled: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """JSON-ready. Counts are in the order of `SEEDS`. Shares are geometric means over seeds, as their interval is."""
    failures = [
        f"{name} scheduled other tokens than stock" for name in COLUMNS if scheduled[name] != scheduled["stock"]
    ]
    for name, all_found in totals.items():
        found = all_found[:NUM_COUNTS]
        if max(found) - min(found) > MAX_APART * min(found):
            failures.append(f"{name}: counts are further apart than {MAX_APART:.1%}: {list(found)}")
    report: dict[str, Any] = {"requests": NUM_REQUESTS, "steps": NUM_STEPS, "gate": as_gate(failures)}
    if failures:
        return report
    by_seed = {name: [min(found[:NUM_COUNTS]), *found[NUM_COUNTS:]] for name, found in totals.items()}
    a_step = {name: round(statistics.fmean(found) / NUM_STEPS) for name, found in by_seed.items()}
    ratios = {
        name: [own / stock for own, stock in zip(found, by_seed["stock"], strict=True)]
        for name, found in by_seed.items()
        if name != "stock"
    }
    shares = {name: round(statistics.geometric_mean(found) - 1, 5) for name, found in ratios.items()}
    intervals = {name: [round(end - 1, 5) for end in student_ratio_interval(found)] for name, found in ratios.items()}
    return report | {
        "repetitions": len(by_seed["stock"]),
        "instructions_a_step": a_step,
        "share_beside_stock": shares,
        "share_intervals": intervals,
    }


def share_told(report: Report, column: str) -> str:
    """`+0.99 % [0.90, 1.08]`. Files of older runs have no interval, and it is said."""
    ends = report.get("share_intervals", {}).get(column)
    told = " without an interval" if ends is None else interval(ends, 100, digits=2)
    return f"{100 * report['share_beside_stock'][column]:+.2f} %{told}"


def _rows(report: Report) -> Iterator[list[str]]:
    for name, found in report["instructions_a_step"].items():
        yield [_TITLES[name], count(found), share_told(report, name) if name in report["share_beside_stock"] else ""]


_TITLES = {"stock": "stock", "connector": "vLLM's scheduler with the connector", "acmserve": "plugin on"}
STEPS = ResultTable(("engine", "instructions a step", "beside stock"), _rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench step-instructions",
        description="Instructions of a scheduler step of 64 decoding requests without session, with the plugin and "
        "without it. Needs Valgrind with its header, and g++. Twenty to forty minutes, on a busy machine, too.",
    )
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark(
    "step-instructions",
    "what a scheduler step of requests without session pays for the plugin, in instructions",
    main,
    (
        BenchmarkRun(
            "step-instructions",
            ("step-instructions",),
            can_plot=False,
            measures=STEP,
            is_timed=False,
            no_exact="one operation, whatever the fidelity",
        ),
    ),
)
