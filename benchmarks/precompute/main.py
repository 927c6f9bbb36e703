"""`acmserve bench precompute`: what the turn after an eviction waits for, when the engine may work while tools run.

The agent's conversation of `bench budget`, with a pause before every request. A pause takes 0.5 to 5 seconds, as with
real agents and their users (`agent/pause.py`), and is drawn by a seed. Five rounds, each another part of it, and each
played twice: under `exact` with precompute `predict`, and without. What goes is evicted by CWL under a budget, cleared
by `clear_tool_uses` of `context_management`, or reasoning that the template drops. Three bars are judged (`bars.py`):
what ordinary turns pay, what all turns wait for, and what the turn behind an edit waits for. One policy takes three
quarters of an hour on a quiet machine.

A number stands only where the model said what the script has, every receipt adds up and no prompt exceeds the budget.
The weights, asked at every token, have to say the same with precompute and without. `--ways` has stock and `reuse`
beside it. The model's words are scripted. The rest is real, and so are the weights with `--model smollm2`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acmserve.bench.agent.conversation import MAX_TOKENS, check_run, run_conversation
from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.agent.scripted_server import SMOLLM2, WINDOWS, check_scripted, read_trace, scripted_server
from acmserve.bench.edit.exact_check import ExactCheck, with_check
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import (
    BEGIN_ANEW,
    add_report_options,
    as_json,
    kept_file,
    positive,
    read_partial,
)
from acmserve.bench.harness.run_log import RUN, progress
from acmserve.bench.models.witness import WITNESS, Agreement
from acmserve.bench.precompute.chains import make_chains
from acmserve.bench.precompute.foreground import MODES_TABLE, measure_foreground
from acmserve.bench.precompute.rounds import Round, RoundPlan, check_entries, kept_rounds, measure_rounds
from acmserve.bench.precompute.runs import (
    CLEARING,
    CWL,
    THOUGHTS,
    agreement,
    held,
    make_runs,
    pauses_of,
    read_counters,
    replay_on_stock,
    sleeper,
)
from acmserve.bench.precompute.table import AGREEMENT, BARS, EVICTIONS, ORDINARY, ROUNDS, as_report, as_rounds_report
from acmserve.bench.precompute.thoughts import THOUGHTS_TABLE, dropping_template, measure_thoughts
from acmserve.bench.provenance.kept_file import kept_entries, write_whole
from acmserve.bench.provenance.machine_use import is_quiet_result
from acmserve.bench.provenance.measured import SERVER

_PROCESSOR = "witnessed_model:WitnessedModel"
_FOREGROUND_TASKS = 6


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench precompute`. 0 when the gate is green, 1 when it is red. A missed bar is told."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.chains:
        return run_benchmark(parser, argv, lambda _: measure_thoughts(options.chains, progress), THOUGHTS_TABLE)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        witness = Path(folder) / "witness.jsonl"
        os.environ[WITNESS] = str(witness)
        if options.foreground:
            return run_benchmark(parser, argv, _measure_foreground, MODES_TABLE)
        if options.ways:
            print(f"One conversation {held(options.policy or CWL, MAX_TOKENS)}, with pauses.", flush=True)
            return run_benchmark(parser, argv, lambda asked: measure(asked, witness), EVICTIONS, ORDINARY, AGREEMENT)
        code = run_benchmark(parser, argv, lambda asked: measure_paired(asked, witness), BARS, ROUNDS)
    # Of a busy result `--resume` has the quiet rounds, and measures the others again.
    if code == 0 and (options.json is None or is_quiet_result(options.json)):
        kept_file(options, "precompute").unlink(missing_ok=True)
    return code


def measure_paired(options: argparse.Namespace, witness: Path) -> dict[str, Any]:
    """Rounds with precompute and without, in turns. What there is of them is kept after each."""
    plan, served = _plan(options)
    machine, about = describe_machine(), plan.describe(options.model)
    file = kept_file(options, "precompute")
    kept = _resumed(file, about, machine) if options.resume else []

    def keep(rounds: Sequence[Round]) -> None:
        report = {"benchmark": "precompute", "partial": True, "rounds_of": about, "rounds": list(rounds)}
        write_whole(file, as_json(report | {"machine": machine}))
        RUN.is_reported = True

    RUN.is_reported = options.resume
    with _server(options) as url:
        checked = _check(url, options)
        rounds = measure_rounds(plan, url, served, witness, kept, keep, progress)
    return with_check(as_rounds_report(about, rounds), checked)


def _resumed(file: Path, about: Mapping[str, Any], machine: Mapping[str, Any]) -> list[Round]:
    """The rounds of a partial result. Raises AcmError with its name where it lacks what a whole one has."""
    report = read_partial(file)
    with kept_entries(file, BEGIN_ANEW):
        rounds = kept_rounds(report, about, machine)
        check_entries(rounds)
    return rounds


def _check(url: str, options: argparse.Namespace) -> ExactCheck:
    """Both ways of a round are `exact`, so a plain request stands beside them."""
    return check_scripted(url, has_layers=options.model == SMOLLM2)


def _plan(options: argparse.Namespace) -> tuple[RoundPlan, Any]:
    """What is played, and the tokenizer that the server counts with."""
    num_tasks = options.tasks * options.rounds
    trace, served = read_trace(num_tasks)
    if options.thoughts:
        trace = make_chains(read_library(), served, num_tasks)
    policy = THOUGHTS if options.thoughts else options.policy or CWL
    return RoundPlan(policy, trace, options.tasks, options.rounds), served


@contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    """The URL of the server that plays the rounds. Of two templates the last one counts."""
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        template = Path(folder) / "dropping.jinja"
        template.write_text(dropping_template(), encoding="utf-8")
        flags = ("--chat-template", str(template)) if options.thoughts else ()
        with scripted_server(options.model, _PROCESSOR, more_flags=flags) as (url, _):
            yield url


def measure(options: argparse.Namespace, witness: Path) -> dict[str, Any]:
    """All runs, one after the other, each under a cache salt of its own. The stock engine last."""
    model, policy = options.model, options.policy or CWL
    trace, served = read_trace(options.tasks)
    runs = make_runs(policy)
    agreed: Agreement | None = None
    with scripted_server(model, _PROCESSOR) as (url, _):
        checked = _check(url, options)
        for run in runs:
            before = read_counters(url)
            run_conversation(url, trace, run, served, progress, pause=sleeper(pauses_of(trace)), keep_prompts=True)
            time.sleep(1.0)
            run.counters = {name: value - before[name] for name, value in read_counters(url).items()}
            run.failures = check_run(run, trace)
    if not any(run.failures for run in runs):
        with scripted_server(model, _PROCESSOR, is_stock=True) as (url, _):
            runs.append(replay_on_stock(url, runs[0], trace, progress))
        if not runs[-1].failures:
            agreed = agreement(runs[0], trace, witness)
    return with_check(as_report(model, policy, trace, runs, agreed), checked)


def _measure_foreground(options: argparse.Namespace) -> dict[str, Any]:
    trace, served = read_trace(_FOREGROUND_TASKS)
    with scripted_server(options.model, _PROCESSOR) as (url, server):
        return measure_foreground(url, server, trace, served, options.foreground, progress)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench precompute", description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    add("--model", choices=list(WINDOWS), default=SMOLLM2, help="tiny: random weights")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--policy", choices=(CWL, CLEARING), help="what is taken out, and when (default cwl)")
    what.add_argument(
        "--thoughts", action="store_true", help="reasoning is dropped by the template, when the user speaks"
    )
    add("--tasks", type=positive, metavar="N", default=4, help="tasks of about 11 turns, in each round (default 4)")
    add("--rounds", type=positive, metavar="N", default=5, help="rounds, each with precompute and without (default 5)")
    add("--resume", action="store_true", help="keep the rounds that a run with this --json left when it was ended")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--ways",
        action="store_true",
        help="instead: all tasks once in four ways, `reuse` and a stock engine among them",
    )
    instead.add_argument(
        "--foreground",
        type=positive,
        metavar="N",
        help="instead: four sessions without pauses, N rounds with and N without precompute",
    )
    instead.add_argument(
        "--chains",
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
        *(
            BenchmarkRun(
                *(name, ("precompute", *more)), can_plot=False, measures=SERVER, resume_flags=("--resume",), minutes=45
            )
            for name, more in {
                "precompute-paired": (),
                "precompute-paired-clear": ("--policy", "clear_tool_uses"),
                "precompute-paired-thoughts": ("--thoughts",),
            }.items()
        ),
        BenchmarkRun(
            "precompute-foreground",
            ("precompute", "--foreground", "5", "--model", "tiny"),
            can_plot=False,
            measures=SERVER,
            no_exact="both rows are `exact`, with precompute and without",
        ),
        BenchmarkRun("precompute-thoughts", ("precompute", "--chains", "5"), can_plot=False, measures=SERVER),
    ),
)
