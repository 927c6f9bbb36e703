"""`acmserve bench sculptor`: what context tools save and what they cost, on two scripted conversations.

The counterpart of Figure 6 of the Sculptor paper (context before and after the tools) with what the figure leaves out.
That is the prefill that the tools themselves cause: without a cache, with exact prefix reuse, and with moved KV.
Section 4.4 of the paper claims that read-only tools reuse the cache and that folding pays for itself. The table shows
both.

The model is SmolLM2 with its window opened and its words scripted (`agent/scripted_server.py`). The first step reads
the text and costs the same everywhere, so it is left out of what the tools cost.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.agent.scripted_server import SMOLLM2, check_scripted, scripted_server
from acmserve.bench.edit.exact_check import with_check
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import count, seconds
from acmserve.bench.harness.options import add_report_options, as_gate, positive
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.harness.workloads import needle_chain, pi_llm, plan_script
from acmserve.bench.provenance.drawn_order import draw_order
from acmserve.bench.provenance.measured import LEAST_REPETITIONS, SERVER
from acmserve.bench.sculptor.run import WorkloadRun, check_workload_run, run_workload
from acmserve.models.smollm2 import prepare

FIDELITIES = ("exact", "reuse")


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench sculptor`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, measure, CONVERSATIONS)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every workload in both fidelities, in an order that is drawn for each repetition."""
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    tokenizer = ServedTokenizer(AutoTokenizer.from_pretrained(prepare()))
    workloads = (pi_llm(46, 8), needle_chain(5, 200)) if options.quick else (pi_llm(), needle_chain())
    runs, failures = list[WorkloadRun](), list[str]()
    num_runs = options.repetitions * len(workloads) * len(FIDELITIES)
    with scripted_server(SMOLLM2) as (url, _):
        checked = check_scripted(url)
        for number in range(options.repetitions):
            for workload in workloads:
                script = plan_script(workload, tokenizer)
                for fidelity in draw_order(FIDELITIES, number, workload.name):
                    progress(counted(len(runs) + 1, num_runs, f"{workload.name}, {fidelity}"))
                    run = run_workload(url, workload, script, fidelity, f"{workload.name}-{fidelity}-{number}")
                    failures += check_workload_run(run, workload)
                    runs.append(run)
    return with_check(as_report(runs, failures), checked)


def as_report(runs: Sequence[WorkloadRun], failures: Sequence[str]) -> dict[str, Any]:
    """JSON-ready: one row for each workload and fidelity, counts of the last run and all times."""
    rows: list[dict[str, Any]] = []
    for workload, fidelity in dict.fromkeys((run.workload, run.fidelity) for run in runs):
        some = [run for run in runs if (run.workload, run.fidelity) == (workload, fidelity)]
        last = some[-1]
        rows.append(
            {
                "workload": workload,
                "fidelity": fidelity,
                "num_steps": len(last.receipts),
                "num_tool_calls": sum(len(step) for step in last.operations),
                "tokens_before": last.tokens_before,
                "tokens_after": last.tokens_after,
                "uncached_tokens": last.paid("prompt_tokens"),
                "kept_tokens": last.paid("kept_tokens"),
                "moved_tokens": last.paid("moved_tokens"),
                "computed_tokens": last.paid("computed_tokens"),
                "seconds_to_answer": [run.seconds_to_answer for run in some],
                "seconds_to_follow_up": [run.seconds_to_follow_up for run in some],
                "follow_up_receipt": last.follow_up,
                "receipts": last.receipts,
            }
        )
    num_repetitions = min((len(row["seconds_to_answer"]) for row in rows), default=0)
    return {"gate": as_gate(failures), "repetitions": num_repetitions, "rows": rows}


def _conversations(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        tokens = [count(row[name]) for name in ("tokens_before", "tokens_after", "computed_tokens", "uncached_tokens")]
        yield [row["workload"], f"`{row['fidelity']}`", *tokens, seconds(statistics.median(row["seconds_to_answer"]))]


CONVERSATIONS = ResultTable(
    (
        "conversation",
        "fidelity",
        "context before",
        "after",
        "computed",
        "with the cache switched off",
        "first token after the edit",
    ),
    _conversations,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench sculptor", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--repetitions",
        type=positive,
        default=LEAST_REPETITIONS,
        metavar="N",
        help=f"runs of each case (default {LEAST_REPETITIONS})",
    )
    add_report_options(parser, quick="short texts: a look, not a measurement", plot=False)
    return parser


BENCHMARK = Benchmark(
    "sculptor",
    "what context tools save and what they cost, on two scripted conversations",
    main,
    (BenchmarkRun("sculptor", ("sculptor",), can_plot=False, measures=SERVER),),
)
