"""`acmserve bench eval`: the table of every task and way of `acmserve eval`, on SmolLM2 behind a server of our own.

    server --> samples x ways --> journal in --work --> JSON, the tables of the page of benchmarks

It is `acmserve eval` with its defaults, but for three things. It starts the server. It takes every way that runs no
code. It bounds answers, since a small model that has nothing to say does not stop. A run that was ended goes on when
it is started again with the same flags. The report leaves the answers out. They stay in the journal, whose name ends in
`.played.jsonl` when all is played.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.eval.journal import Journal
from acmserve.bench.eval.main import as_report, parser, samples_of
from acmserve.bench.eval.prices import prices_of
from acmserve.bench.eval.run import make_plan, play_all
from acmserve.bench.eval.summary import ALL
from acmserve.bench.eval.target import Target
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS
from acmserve.bench.eval.ways import CODE_WAYS, DEFAULT_WAYS, WAYS
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import interval, points
from acmserve.bench.harness.options import add_model_option, add_report_options, as_gate, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.models.model_folder import prepare_model
from acmserve.bench.provenance.measured import SERVER
from acmserve.models.smollm2 import TOOLS_TEMPLATE

NUM_SAMPLES, ANSWER_TOKENS = 4, 256
NUM_QUICK, QUICK_ANSWER_TOKENS = 1, 48
QUICK_WAYS = frozenset({*DEFAULT_WAYS, "budget:cwl", "shared", "rag"})
_WINDOW, _KV_GIB = 8_192, 2


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench eval`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, measure, TASK_TABLE, WAY_TABLE)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start the server and play what the journal does not have."""
    folder = prepare_model(options.model)
    flags = [
        *("--served-model-name", folder.name, "--dtype", "float32", "--max-model-len", str(_WINDOW)),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    progress(f"{folder.name}: starting the server (about half a minute)")
    with ServerProcess(folder, flags, _KV_GIB) as server:
        return play(server.wait_ready(), options)


def play(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """The report of a server that runs. A sample that it refuses makes the gate red: the table would lack it."""
    num = options.samples or (NUM_QUICK if options.quick else NUM_SAMPLES)
    most = QUICK_ANSWER_TOKENS if options.quick else ANSWER_TOKENS
    ways = [name for name in WAYS if name in QUICK_WAYS or not (options.quick or name in CODE_WAYS)]
    asked = [url, "--samples", str(num), "--max-tokens", str(most), "--ways", ",".join(ways)]
    asked += ["--tasks", ",".join(options.tasks or DEFAULT_TASKS)]
    wanted = parser().parse_args(asked)
    target = Target.find(wanted.url, wanted.model, wanted.api_key, {"temperature": 0})
    try:
        plan = make_plan(target, samples_of(wanted), wanted.ways, wanted.budget)
        options.work.mkdir(parents=True, exist_ok=True)
        journal = options.work / f"{plan.digest}.jsonl"
        records = play_all(plan, target, Journal(journal, plan.digest), progress)
    finally:
        target.close()
    report = as_report(plan, records, prices_of(wanted), wanted.seed, has_acm=target.has_acm)
    del report["records"]
    # The next run is another one: it plays everything anew.
    journal.replace(journal.with_suffix(".played.jsonl"))
    refused = [f"{one['task']} {one['sample']}, {one['way']}: {one['error']}" for one in records if one["error"]]
    return {"gate": as_gate(refused), "is_quick": options.quick, "max_tokens": most, **report}


def _cells_by_task(report: Report) -> Iterator[list[str]]:
    """A row for each way, a column for each task."""
    found = {(row["way"], row["task"]): row for row in report["rows"]}
    for way in report["ways"]:
        yield [f"`{way}`", *(_score(found.get((way, task))) for task in DEFAULT_TASKS)]


def _cells_by_way(report: Report) -> Iterator[list[str]]:
    tasks = {row["task"] for row in report["rows"]}
    for row in report["rows"]:
        if row["task"] == (ALL if len(tasks) > 1 else next(iter(tasks))):
            beside = "-" if row["difference"] is None else points(row["difference"], row["difference_interval"])
            counts = (row["prompt_tokens"], row["kept_tokens"], row["computed_tokens"], row["output_tokens"])
            updates = sum(row["update_tokens"] or ())
            yield [
                *(f"`{row['way']}`", str(row["num_samples"]), _score(row), beside),
                *(f"{num:,}" for num in (row["num_requests"], *counts, updates, row["num_unmet"])),
                f"{1e6 * row['cost']:,.0f}",
            ]


def _score(row: Report | None) -> str:
    """Right answers in per cent, with their interval and how many samples there were."""
    if row is None:
        return "-"
    return f"{100 * row['score']:.0f}{interval(row['score_interval'], 100, 0)}, n {row['num_samples']}"


TASK_TABLE = ResultTable(
    ("way", *DEFAULT_TASKS),
    _cells_by_task,
    "Right answers in per cent with 95 % intervals, and the number of samples. A way that does not apply has none.",
)
WAY_TABLE = ResultTable(
    (
        *("way", "n", "right, %", "beside its baseline, points", "requests", "prompt", "kept", "computed", "output"),
        *("map updates", "over budget", "cost, millionths"),
    ),
    _cells_by_way,
    "All tasks that a way plays, in tokens. A baseline is `baseline`, or `reads` for budgets.",
)


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="acmserve bench eval", description=(__doc__ or "").partition("\n")[0])
    add_model_option(flags)
    flags.add_argument("--samples", type=positive, metavar="N", help=f"contexts for each setting ({NUM_SAMPLES})")
    flags.add_argument(
        "--tasks", nargs="+", choices=DEFAULT_TASKS, metavar="NAME", help="default: all that run no code"
    )
    flags.add_argument(
        "--work", type=Path, default=Path("bench-eval"), metavar="DIR", help="journals, to go on with (%(default)s)"
    )
    add_report_options(
        flags, quick="one context for each setting, short answers, fewer ways: a look, not a result", plot=False
    )
    return flags


BENCHMARK = Benchmark(
    "eval",
    "right answers on the papers' tasks in every way, on SmolLM2",
    main,
    (
        BenchmarkRun(
            "eval",
            ("eval",),
            quick=("eval", "--quick"),
            can_plot=False,
            measures=SERVER,
            is_timed=False,
            no_exact="answers of ways, all under the default, `exact`",
        ),
    ),
)
