"""`acmserve bench micro`: what single operations take, on pytest-benchmark.

    kernel        the move of KV on the CPU, beside memcpy of the same bytes on the same threads
    match         the matcher, over ordinary edits and adversarial repetition
    search        one `search_context` call over a million characters
    step          a scheduler step of requests without session, with the plugin and without it
    budget-pass   what a budget costs a step beside the model
    identity      how long it takes to find the session of a request by its content

Every operation is a file `bench_NAME.py` that pytest runs. Its asserts are the gate, in front of each measurement. The
JSON file holds what pytest-benchmark wrote, so `--compare FILE` sets a new run beside an old one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, as_gate, hand_over, red_gate
from acmserve.bench.harness.run_log import RUN, counted, progress
from acmserve.bench.micro.rows import as_rows, micro_table
from acmserve.bench.provenance.measured import EVICTION, IDENTITY, KERNELS, PLAN, STEP, TOOLS
from acmserve.errors import AcmError

MEASURES = {
    "budget-pass": EVICTION,
    "identity": IDENTITY,
    "kernel": KERNELS,
    "match": PLAN,
    "search": TOOLS,
    "step": STEP,
}
NAMES = tuple(MEASURES)
# Its rounds scatter more than the engines differ, so `bench step-instructions` is recorded in its place.
# Schedulers that take turns in one process slow each other down: Python specialises bytecode for the class it meets.
PROCESSES = {"step": 2 * ("stock", "connector", "acmserve")}
QUICK = ("--benchmark-min-rounds=3", "--benchmark-max-time=0.05")
FULL = ("--benchmark-min-rounds=9", "--benchmark-max-time=0.5")


def measure(names: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """Run the files that were asked for. What pytest-benchmark wrote of each process goes together."""
    report: dict[str, Any] = {"benchmarks": []}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        cases = [(name, case) for name in names for case in PROCESSES.get(name, ("",))]
        for number, (name, case) in enumerate(cases, start=1):
            progress(counted(number, len(cases), f"{name} {case}".rstrip()))
            file = Path(folder) / "report.json"
            file.unlink(missing_ok=True)
            failures += run_pytest(name, case, file, flags)
            wrote = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"benchmarks": []}
            for one in wrote["benchmarks"]:
                one["extra_info"] |= {"benchmark": name}
                RUN.answered(None, None, name=one["name"], median_seconds=one["stats"]["median"])
            report = wrote | {"benchmarks": [*report["benchmarks"], *wrote["benchmarks"]]}
    report.get("machine_info", {}).pop("node", None)
    if not failures and not report["benchmarks"]:
        failures.append("pytest measured nothing")
    return report | {"gate": as_gate(failures)} | ({} if failures else as_rows(report["benchmarks"]))


def run_pytest(name: str, case: str, file: Path, flags: Sequence[str]) -> list[str]:
    """One process of pytest. What failed in it, a line each. Its comparison goes to stderr. Raises AcmError."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", str(here / f"bench_{name.replace('-', '_')}.py"), "-q", "-rfE"]
    command += ["-c", os.devnull, "--rootdir", str(here), "-p", "no:cacheprovider", "-o", "python_functions=bench_*"]
    command += ["--benchmark-only", f"--benchmark-json={file}", *flags, *(["-k", case] if case else [])]
    # As many columns as the reason of a failure may have, and nothing of a pytest that this one runs in.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["COLUMNS"] = "1000"
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    )
    if done.returncode > 1 or any(flag.startswith("--benchmark-compare") for flag in flags):
        progress(done.stdout)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode and not failed:
        raise AcmError(f"pytest could not run {name} (exit code {done.returncode}); it needs the extra [bench]")
    return failed


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench micro`. Returns 1 where a gate was red."""
    options = _parser().parse_args(argv)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        raise AcmError(f"unknown operation {unknown[0]!r}; choose some of {', '.join(NAMES)}")
    flags = [*(QUICK if options.quick else FULL)]
    if options.compare is not None:
        flags.append(f"--benchmark-compare={options.compare.absolute()}")
    machine = describe_machine()
    print(one_line(machine), flush=True)
    report = measure(options.names or NAMES, flags) | {"machine": machine}
    return hand_over(report, lambda made: red_gate(made) or micro_table(made["rows"]), None, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench micro", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="also set beside the numbers of an older --json")
    add_report_options(parser, quick="three rounds each: a look, not a measurement", plot=False)
    return parser


BENCHMARK = Benchmark(
    "micro",
    "single operations: kernel, match, search, step, budget-pass, identity",
    main,
    tuple(
        BenchmarkRun(
            name,
            ("micro", name),
            quick=("micro", name, "--quick") if name in {"kernel", "search"} else (),
            can_plot=False,
            measures=paths,
            no_exact="one operation, whatever the fidelity",
            is_recorded=name != "step",
        )
        for name, paths in MEASURES.items()
    ),
)
