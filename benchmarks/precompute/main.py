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
from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.agent.scripted_server import SMOLLM2, WINDOWS, read_trace, scripted_server
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.measured import SERVER
from acmserve.bench.harness.options import add_report_options, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.models.witness import WITNESS, Agreement
from acmserve.bench.precompute.foreground import MODES_TABLE, measure_foreground
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

_PROCESSOR = "witnessed_model:WitnessedModel"


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench precompute`. 0 when the gate is green, 1 when it is red."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.thoughts:
        return run_benchmark(parser, argv, lambda _: measure_thoughts(options.thoughts, progress), THOUGHTS_TABLE)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        witness = Path(folder) / "witness.jsonl"
        os.environ[WITNESS] = str(witness)
        if options.foreground:
            return run_benchmark(parser, argv, _measure_foreground, MODES_TABLE)
        print(f"One conversation {held(options.policy, MAX_TOKENS)}, with pauses.", flush=True)
        return run_benchmark(parser, argv, lambda asked: measure(asked, witness), EVICTIONS, ORDINARY, AGREEMENT)


def measure(options: argparse.Namespace, witness: Path) -> dict[str, Any]:
    """All runs, one after the other, each under a cache salt of its own. The stock engine last."""
    model, policy = options.model, options.policy
    trace, served = read_trace(options.tasks)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench precompute", description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    add("--model", choices=list(WINDOWS), default=SMOLLM2, help="tiny: random weights")
    add("--policy", choices=(CWL, CLEARING), default=CWL, help="what is taken out, and when (default cwl)")
    add("--tasks", type=positive, metavar="N", default=6, help="tasks of about 11 turns (default 6)")
    instead = parser.add_mutually_exclusive_group()
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
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark(
    "precompute",
    "what the turn after an eviction waits for, when the engine may compute while tools run",
    main,
    (
        BenchmarkRun("precompute", ("precompute", "--tasks", "20"), can_plot=False, measures=SERVER),
        BenchmarkRun(
            "precompute-clear",
            ("precompute", "--tasks", "20", "--policy", "clear_tool_uses"),
            can_plot=False,
            measures=SERVER,
        ),
        BenchmarkRun(
            "precompute-foreground",
            ("precompute", "--foreground", "5", "--model", "tiny"),
            can_plot=False,
            measures=SERVER,
            no_exact="both rows are `exact`, with precompute and without",
        ),
        BenchmarkRun("precompute-thoughts", ("precompute", "--thoughts", "3"), can_plot=False, measures=SERVER),
    ),
)
