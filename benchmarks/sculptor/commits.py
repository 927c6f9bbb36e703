"""`acmserve bench commits`: what the folds of PI-LLM cost one a step, by when they take effect.

    at once     eight folds in one completion             one change of the prompt
    now         one fold a step, shown in the next step   eight changes, each computes what stands behind it
    cheapest    one fold a step, `acm.commit: cheapest`   accepted at once, shown when that costs least

Counts only, under `exact`, by a random one-layer model with SmolLM2's tokenizer. The next turn counts, because what
still waits takes effect at the end of an answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.agent.scripted_server import TINY, check_scripted, scripted_server
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import count, ratio
from acmserve.bench.harness.options import add_report_options, as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.harness.workloads import pi_llm, plan_script
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.sculptor.run import WorkloadRun, check_workload_run, run_workload

WAYS = {"at once": (False, "now"), "now": (True, "now"), "cheapest": (True, "cheapest")}
"""Whether each fold has a step of its own, and `acm.commit`."""
TITLES = {
    "at once": "all in one completion",
    "now": "one a step, `acm.commit: now`",
    "cheapest": "one a step, `acm.commit: cheapest`",
}
SIZES: Mapping[bool, Mapping[str, int]] = {
    False: {"num_updates": 64, "num_folded": 8},
    True: {"num_updates": 16, "num_folded": 4},
}
"""Of the whole run, and of the quick one. A fold that waits adds its own call and result, some 110 tokens, whatever the
text has. Eight of them are more than a fifth of what a quarter of the text computes at once, so the quick one has four.
"""
MOST = 1.2
"""How much more than all folds at once those that wait may cost."""


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench commits`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, lambda options: as_report(*measure(SIZES[options.quick])), FOLDS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench commits", description=__doc__.split("\n\n")[0])
    add_report_options(parser, quick="fewer updates and folds: a look, not a measurement", plot=False)
    return parser


def measure(sizes: Mapping[str, int]) -> tuple[dict[str, WorkloadRun], list[str]]:
    """The run of each way, and why numbers may not be reported. `sizes` are those of `pi_llm`."""
    from transformers import AutoTokenizer

    from acmserve.models.smollm2 import prepare
    from acmserve.server.models.tokenizer import ServedTokenizer

    tokenizer = ServedTokenizer(AutoTokenizer.from_pretrained(prepare()))
    runs: dict[str, WorkloadRun] = {}
    failures: list[str] = []
    with scripted_server(TINY) as (url, _):
        failures += check_scripted(url, has_layers=False).failures
        for way, (one_a_step, commit) in WAYS.items():
            progress(counted(len(runs) + 1, len(WAYS), way))
            workload = pi_llm(**sizes, one_a_step=one_a_step)
            script = plan_script(workload, tokenizer)
            runs[way] = run_workload(url, workload, script, "exact", f"commits-{way}", commit)
            failures += check_workload_run(runs[way], workload)
    return runs, failures


def as_report(runs: dict[str, WorkloadRun], failures: Sequence[str]) -> dict[str, Any]:
    """JSON-ready: a row for each way."""
    rows = [
        {
            "way": way,
            "num_steps": len(run.receipts),
            "prompt_tokens": [receipt["prompt_tokens"] for receipt in run.receipts],
            "step_computed_tokens": [receipt["computed_tokens"] for receipt in run.receipts[1:]],
            "next_turn_prompt_tokens": run.follow_up["prompt_tokens"],
            "next_turn_computed_tokens": run.follow_up["computed_tokens"],
            "computed_tokens": run.paid("computed_tokens") + run.follow_up["computed_tokens"],
            "num_folds": sum(op["tool"] == "fold_fragment" and op["changed"] for ops in run.operations for op in ops),
        }
        for way, run in runs.items()
    ]
    return {"gate": as_gate([*failures, *_check_rows(rows)]), "rows": rows}


def _check_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Every way folded the same, and what waited cost little more than all at once."""
    by_way = {row["way"]: row for row in rows}
    at_once, waited = by_way["at once"], by_way["cheapest"]
    failures = [
        f"{row['way']}: {row['num_folds']} folds, {at_once['num_folds']} at once"
        for row in rows
        if row["num_folds"] != at_once["num_folds"]
    ]
    if waited["computed_tokens"] > MOST * at_once["computed_tokens"]:
        failures.append(f"cheapest: {waited['computed_tokens']} tokens, {at_once['computed_tokens']} at once")
    return failures


def _folds(report: Report) -> Iterator[list[str]]:
    rows = {row["way"]: row for row in report["rows"]}
    for way, title in TITLES.items():
        row = rows[way]
        steps, next_turn, together = (
            sum(row["step_computed_tokens"]),
            row["next_turn_computed_tokens"],
            row["computed_tokens"],
        )
        beside = ratio(together / rows["at once"]["computed_tokens"])
        yield [title, str(row["num_steps"]), count(steps), count(next_turn), count(together), beside]


FOLDS = ResultTable(
    ("folds", "steps", "computed by the steps", "by the next turn", "together", "beside all at once"), _folds
)

BENCHMARK = Benchmark(
    "commits",
    "what folds cost one a step, by when they take effect",
    main,
    (
        BenchmarkRun(
            "commits",
            ("commits",),
            quick=("commits", "--quick"),
            can_plot=False,
            measures=SERVER,
            is_timed=False,
            no_exact="every row is `exact`",
        ),
    ),
)
