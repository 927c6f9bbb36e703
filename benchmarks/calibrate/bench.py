"""`acmserve bench calibrate`: how long `acmserve calibrate` takes, and whether what it says of a model may be trusted.

The command is run as a user runs it, in a process of its own, from its start to the file that it writes. Two bars are
judged: its time, and what it says of PI-LLM's updates, where moved KV remembers values that were overwritten.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.calibrate.bars import BARS, EDITS, as_report
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.options import add_model_option, add_report_options, positive
from acmserve.bench.provenance.measured import ENGINE

NUM_CASES = 8
"""As many as the command takes by itself."""


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench calibrate`. 0 when the command wrote a calibration, else 1. A missed bar is told."""
    return run_benchmark(_parser(), argv, measure, BARS, EDITS)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the command once, and read what it wrote."""
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        out = Path(folder) / "calibration.json"
        words = ("calibrate", options.model, "--cases", str(options.cases), "--out", str(out))
        began = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "acmserve", *words])
        try:
            code = process.wait()
        finally:
            # It ends its own engine, and has time for it.
            process.terminate()
            process.wait()
        seconds = time.monotonic() - began
        found = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
    return as_report(options.model, options.cases, seconds, found, code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench calibrate", description=__doc__.split("\n\n")[1])
    add_model_option(parser)
    parser.add_argument(
        "--cases", type=positive, metavar="N", default=NUM_CASES, help=f"edits of each kind (default {NUM_CASES})"
    )
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark(
    "calibrate",
    "how long `acmserve calibrate` takes, and what it says of updates of values",
    main,
    (
        BenchmarkRun(
            "calibrate",
            ("calibrate",),
            can_plot=False,
            measures=ENGINE,
            no_exact="distances to `exact` of the same engine, which is no row of its own",
        ),
    ),
)
