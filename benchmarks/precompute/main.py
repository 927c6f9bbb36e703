"""`acmserve bench precompute`: what the turn after an eviction waits for, when the engine may work while tools run.

The agent's conversation of `bench budget`, with a pause before every request, as its tools would take: 0.5 to 5
seconds, drawn by a seed, the same in every run. Four runs, one after the other: `exact` with precompute `predict`.
`exact`. `reuse`. And a stock engine that gets the very prompts of the first. What goes is evicted by CWL under a
budget, or cleared by `clear_tool_uses` of `context_management`. Turns in front of which something was taken out count
apart from plain appends, and the appends of `predict` are compared with those of `exact`.

A number stands only where the model said what the script has, every receipt adds up and no prompt exceeds the budget.
The weights, asked at every token, have to say what those of the stock engine would have said. The model's words are
scripted. The rest is real, and so are the weights with `--model smollm2`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.conversation import MAX_TOKENS, check_run, run_conversation
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.agent.scripted_server import SMOLLM2, WINDOWS, read_trace, scripted_server
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.engine import LocalEngine
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, hand_over, positive, progress
from acmserve.bench.models.witness import WITNESS, Agreement
from acmserve.bench.precompute.answers import ANSWERS, measure_answers
from acmserve.bench.precompute.foreground import MODES_TABLE, measure_foreground
from acmserve.bench.precompute.plot import draw
from acmserve.bench.precompute.runs import (
    CLEARING,
    CWL,
    agreement,
    held,
    make_runs,
    read_counters,
    replay_on_stock,
    tool_pauses,
)
from acmserve.bench.precompute.table import AGREEMENT, EVICTIONS, ORDINARY, as_report
from acmserve.bench.precompute.thoughts import THOUGHTS_TABLE, measure_thoughts
from acmserve.models.smollm2 import prepare

_SEED = 23
_PROCESSOR = "witnessed_model:WitnessedModel"


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench precompute`. 0 when the gate is green, 1 when it is red."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.plot is not None and (options.answers or options.foreground or options.thoughts):
        parser.error("--plot draws the conversation; --answers, --foreground and --thoughts have no plot")
    machine = describe_machine()
    print(one_line(machine), flush=True)
    if options.answers:
        return _answer(options, machine)
    if options.thoughts:
        report = measure_thoughts(options.thoughts, progress)
        return hand_over(report | {"machine": machine}, told_by(THOUGHTS_TABLE), None, options)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        witness = Path(folder) / "witness.jsonl"
        os.environ[WITNESS] = str(witness)
        if options.foreground:
            return hand_over(_measure_foreground(options) | {"machine": machine}, told_by(MODES_TABLE), None, options)
        print(f"One conversation {held(options.policy, MAX_TOKENS)}, with pauses.", flush=True)
        report = measure(options.model, options.policy, options.tasks, witness)
    return hand_over(report | {"machine": machine}, told_by(EVICTIONS, ORDINARY, AGREEMENT), draw, options)


def measure(model: str, policy: str, num_tasks: int, witness: Path) -> dict[str, Any]:
    """All runs, one after the other, each under a cache salt of its own. The stock engine last."""
    trace, served = read_trace(num_tasks)
    runs = make_runs(policy)
    agreed: Agreement | None = None
    with scripted_server(model, _PROCESSOR) as (url, _):
        for run in runs:
            before = read_counters(url)
            run_conversation(url, trace, run, served, progress, pause=tool_pauses(), keep_prompts=True)
            time.sleep(1.0)
            run.counters = {name: value - before[name] for name, value in read_counters(url).items()}
            run.failures = check_run(run, trace)
    if not any(run.failures for run in runs):
        with scripted_server(model, _PROCESSOR, is_stock=True) as (url, _):
            runs.append(replay_on_stock(url, runs[0], trace, progress))
        if not runs[-1].failures:
            agreed = agreement(runs[0], trace, witness)
    return as_report(model, policy, trace, runs, agreed)


def _measure_foreground(options: argparse.Namespace) -> dict[str, Any]:
    trace, served = read_trace(options.tasks)
    with scripted_server(options.model, _PROCESSOR) as (url, server):
        return measure_foreground(url, server, trace, served, options.foreground, progress)


def _answer(options: argparse.Namespace, machine: dict[str, Any]) -> int:
    progress("starting the engine")
    engine = LocalEngine(prepare(), with_acmserve=True)
    try:
        report = measure_answers(engine, options.answers, _SEED, progress)
    finally:
        engine.close()
    return hand_over(report | {"machine": machine}, told_by(ANSWERS), None, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench precompute", description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    add("--model", choices=list(WINDOWS), default=SMOLLM2, help="tiny: random weights")
    add("--policy", choices=(CWL, CLEARING), default=CWL, help="what is taken out, and when (default cwl)")
    add("--tasks", type=positive, metavar="N", default=6, help="tasks of about 11 turns (default 6)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--answers",
        type=positive,
        metavar="N",
        help="instead: N cases of fold, then answer; accuracy and latency of exact, exact precomputed, and reuse",
    )
    instead.add_argument(
        "--foreground",
        type=positive,
        metavar="N",
        help="instead: four sessions without pauses, N rounds with and N without precompute",
    )
    instead.add_argument(
        "--thoughts",
        type=positive,
        metavar="N",
        help="instead: N chains of thoughts that the template drops, then the user speaks; a stock server beside it",
    )
    add_report_options(parser)
    return parser


BENCHMARK = Benchmark(
    "precompute",
    "what the turn after an eviction waits for, when the engine may compute while tools run",
    main,
    (BenchmarkRun("precompute", ("precompute",)),),
)
