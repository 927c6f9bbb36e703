"""`acmserve bench sweep`: what do budgets of 50,000, 80,000 and 120,000 tokens cost over one session of many tasks?

The ablation of CWL's paper (arXiv 2606.11213, section 6.4), in tokens: policies under each budget, beside no budget,
and beside a session for each task. Re-explorations are counted, too. They are calls of the recording that repeat one
whose result the policy had taken out. Prompts are planned, and so is what a server computes of them. No engine runs.

The conversation is the scripted agent's tasks on Python's standard library, or with --traces those of real agents.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acmserve.bench.agent.agentperf import AGENTPERF, read_traces
from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.eval.prices import add_price_options, prices_of
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.options import add_report_options, as_gate, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.provenance.measured import CONTEXT, PLAN
from acmserve.bench.sweep.conversations import SweptTasks, of_recordings, of_trace
from acmserve.bench.sweep.message_tokens import MessageTokens
from acmserve.bench.sweep.rows import BUDGETS, check_rows, plan_rows, ways_of
from acmserve.bench.sweep.table import BUDGET_REPEATS, BUDGET_TOKENS
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.models import smollm2

NUM_TASKS = 40
"""About 424 turns. Twenty tasks have 74,000 tokens, and each budget is to be exceeded."""


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench sweep`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, _measure, BUDGET_TOKENS, BUDGET_REPEATS)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2.prepare(progress=progress))
    served = ServedTokenizer(tokenizer)
    writer = PromptWriter(MessageTokens(tokenizer), smollm2.TOOLS_TEMPLATE.read_text(encoding="utf-8"))
    tasks = _tasks(options, served)
    rows = list(plan_rows(tasks, ways_of(options.budgets), writer, served, progress))
    failures = check_rows(rows)
    return {
        "gate": as_gate(failures),
        "trace": "scripted" if options.traces is None else Path(options.traces).name,
        "num_tasks": len(tasks.alone),
        "num_turns": len(tasks.together.steps),
        "budgets": list(options.budgets),
        "prices": asdict(prices_of(options)),
        "rows": [] if failures else rows,
    }


def _tasks(options: argparse.Namespace, tokenizer: Tokenizer) -> SweptTasks:
    if options.traces is None:
        return of_trace(make_trace(read_library(), tokenizer, options.tasks))
    return of_recordings(read_traces(options.traces, progress))


def _budgets(text: str) -> tuple[int, ...]:
    """Argument type: tokens, with commas between them. Each once, the smallest first."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def _parser() -> argparse.ArgumentParser:
    description = "Tokens and re-explorations of one long session under several budgets, planned without an engine."
    parser = argparse.ArgumentParser(prog="acmserve bench sweep", description=description)
    add = parser.add_argument
    told = ",".join(map(str, BUDGETS))
    add("--budgets", type=_budgets, default=BUDGETS, metavar="N,N", help=f"in tokens (default {told})")
    add("--tasks", type=positive, default=NUM_TASKS, metavar="N", help=f"of the scripted agent (default {NUM_TASKS})")
    add("--traces", metavar="T", help="agentperf: real agents, out of a wheel from PyPI; or the path of that wheel")
    add_price_options(parser)
    add_report_options(parser, plot=False)
    return parser


def _run(name: str, *arguments: str) -> BenchmarkRun:
    why = "prompts that are planned, no engine"
    words = ("sweep", *arguments)
    return BenchmarkRun(name, words, can_plot=False, measures=(*CONTEXT, *PLAN), is_timed=False, no_exact=why)


BENCHMARK = Benchmark(
    "sweep",
    "one long session under budgets of 50,000 to 120,000 tokens: tokens and re-explorations, without an engine",
    main,
    (_run("sweep"), _run("sweep-real", "--traces", AGENTPERF)),
)
