"""`acmserve bench tasks`: does the model still answer right after a fold, in every way to serve it?

Five generators have fixed seeds. Three make updates of keys (PI-LLM), chains of needles (NeedleBench), and the n-th
request of a kind (MRCR). Two make counts over a log (OOLONG), and facts beside folds that have nothing to do with them.
Each case is served with its full context, folded and computed exactly, folded on moved KV, repaired in several ways,
and under `auto`.

A small model answers badly in words, so two things are told. One is whether the model finds the right candidate the
most likely one (the first tokens of candidates differ). The other is the score of what it generates, by the rule of the
task's paper. How far thresholds of `auto` carry is judged on seeds that they were not chosen on. Sizes that `exact`
seldom answers are out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.edit.exact_check import check_exact
from acmserve.bench.edit.main import read_text
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.engine import LocalEngine
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_model_option, add_report_options, as_gate, hand_over, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.models.model_folder import prepare_model
from acmserve.bench.provenance.measured import ENGINE
from acmserve.bench.tasks.auto import judge
from acmserve.bench.tasks.cases import make_cases
from acmserve.bench.tasks.floor import above_floor, at_floor
from acmserve.bench.tasks.generators import pi_llm as task_pi_llm
from acmserve.bench.tasks.generators.case import digest
from acmserve.bench.tasks.plot import draw
from acmserve.bench.tasks.run import VARIANTS, TasksOutcome, run_cases
from acmserve.bench.tasks.summary import summarise
from acmserve.bench.tasks.table import as_table

NUM_CASES, NUM_QUICK = 60, 6
KV_GIB = 3
PAPER_UPDATES = tuple(sizes for sizes in task_pi_llm.PAPER if sizes.num_updates <= 32)


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench tasks`. Returns 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    folder = prepare_model(options.model)
    machine = describe_machine()
    print(one_line(machine), flush=True)
    num_each = options.cases or (NUM_QUICK if options.quick else NUM_CASES)
    updates = PAPER_UPDATES if options.paper else task_pi_llm.SMALL
    report = measure(folder, num_each, options.seed, updates) | {"machine": machine}
    return hand_over(report, as_table, draw, options)


def measure(folder: Path, num_each: int, seed: int, updates: Sequence[task_pi_llm.UpdateSizes]) -> dict[str, Any]:
    """Serve `num_each` cases of every task. No numbers when the gate is red."""
    cases = make_cases(num_each, seed, read_library().topics, updates)
    progress(f"{folder.name}: starting the engine (about half a minute)")
    engine = LocalEngine(folder, with_acmserve=True, kv_gib=KV_GIB)
    outcome = TasksOutcome()
    try:
        checked = check_exact(engine.ask, read_text(folder))
        run_cases(engine, cases, outcome, say=progress)
    finally:
        engine.close()
    kept = above_floor(outcome.records)
    failures = [*checked.failures, *outcome.failures]
    if not kept:
        failures.append("exact answers too few questions of every size, so nothing is told")
    is_green = not failures
    names = [variant.name for variant in VARIANTS]
    return {
        "model": folder.name,
        "seed": seed,
        "num_cases": len(cases),
        "digest": digest(cases),
        "gate": as_gate(failures),
        "exact_check": checked.as_dict(),
        "refusal": outcome.refusal,
        "num_dropped_choices": outcome.num_dropped_choices,
        "variants": [{"name": v.name, "title": v.title, "fidelity": v.fidelity, "acm": v.acm} for v in VARIANTS],
        "at_floor": at_floor(outcome.records) if is_green else {},
        "summary": summarise(kept, names, seed) if is_green else [],
        "auto": judge(kept) if is_green and not outcome.refusal else None,
        "records": outcome.records if is_green else [],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench tasks",
        description="Accuracy on five generated tasks after a fold: with the full context, exact, on moved KV, "
        "repaired, and under auto, with 95 % intervals; and how much auto may move before answers suffer. "
        "Forty minutes on two cores; --quick takes three minutes.",
    )
    add_model_option(parser)
    parser.add_argument(
        "--cases",
        type=positive,
        metavar="N",
        help=f"cases of each task (default {NUM_CASES}; {NUM_QUICK} when --quick)",
    )
    parser.add_argument(
        "--paper",
        action="store_true",
        help="PI-LLM with the 46 keys of its paper and 2 to 32 updates of each, which is what 8,192 tokens hold",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draws the cases (default 0)")
    add_report_options(parser, quick="few cases: a look, not a result to quote")
    return parser


_COUNTED: dict[str, Any] = {"measures": ENGINE, "is_timed": False}
BENCHMARK = Benchmark(
    "tasks",
    "right answers after a fold on five generated tasks, and how much auto may move before they suffer",
    main,
    (
        BenchmarkRun("tasks", ("tasks", "--seed", "1", "--cases", "45"), ("tasks", "--quick"), **_COUNTED),
        BenchmarkRun("tasks-seed2", ("tasks", "--seed", "2", "--cases", "14"), **_COUNTED),
        BenchmarkRun("tasks-seed3", ("tasks", "--seed", "3", "--cases", "14"), **_COUNTED),
    ),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
