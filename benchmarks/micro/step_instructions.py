"""`acmserve bench step-instructions`: what a request without session pays for the plugin, in retired instructions.

A clock cannot tell 1 % of a scheduler step on a shared machine (`bench_step.py`). Valgrind counts the instructions of
the same steps, Python's own included, whatever else the machine does.

The gate: every column schedules the tokens that a stock scheduler schedules, and two counts of a column agree.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import count
from acmserve.bench.harness.options import add_report_options, as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.micro.bench_step import COLUMNS, NUM_REQUESTS
from acmserve.bench.micro.counted_steps import NUM_STEPS
from acmserve.bench.micro.instructions import count_instructions
from acmserve.bench.provenance.measured import STEP

NUM_COUNTS = 2
MAX_APART = 0.001
_PROGRAM = "acmserve.bench.micro.counted_steps"


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench step-instructions`. Returns 1 at a red gate. Raises AcmError without Valgrind."""
    return run_benchmark(_parser(), argv, lambda options: measure(), STEPS)


def measure() -> dict[str, Any]:
    """Every column in processes of its own, in turn."""
    totals: dict[str, list[int]] = {column: [] for column in COLUMNS}
    scheduled: dict[str, list[Any]] = {}
    columns = NUM_COUNTS * COLUMNS
    for number, column in enumerate(columns, start=1):
        progress(counted(number, len(columns), column))
        with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
            total, said = count_instructions(_PROGRAM, [column], Path(folder))
        totals[column].append(total)
        scheduled[column] = json.loads(said.splitlines()[-1])
    return as_report(totals, scheduled)


def as_report(totals: Mapping[str, Sequence[int]], scheduled: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """JSON-ready. `own_share` is the plugin's part of a step: all that stock vLLM does not do."""
    failures = [
        f"{name} scheduled other tokens than stock" for name in COLUMNS if scheduled[name] != scheduled["stock"]
    ]
    for name, found in totals.items():
        if max(found) - min(found) > MAX_APART * min(found):
            failures.append(f"{name}: counts are further apart than {MAX_APART:.1%}: {list(found)}")
    report: dict[str, Any] = {"requests": NUM_REQUESTS, "steps": NUM_STEPS, "gate": as_gate(failures)}
    if failures:
        return report
    a_step = {name: round(min(found) / NUM_STEPS) for name, found in totals.items()}
    shares = {name: round(found / a_step["stock"] - 1, 5) for name, found in a_step.items() if name != "stock"}
    return report | {"instructions_a_step": a_step, "share_beside_stock": shares}


def _rows(report: Report) -> Iterator[list[str]]:
    for name, found in report["instructions_a_step"].items():
        share = report["share_beside_stock"].get(name)
        yield [_TITLES[name], count(found), "" if share is None else f"{100 * share:+.2f} %"]


_TITLES = {"stock": "stock", "connector": "vLLM's scheduler with the connector", "acmserve": "plugin on"}
STEPS = ResultTable(("engine", "instructions a step", "beside stock"), _rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench step-instructions",
        description="Instructions of a scheduler step of 64 decoding requests without session, with the plugin and "
        "without it. Needs Valgrind with its header, and g++. Ten to twenty minutes, on a busy machine, too.",
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
