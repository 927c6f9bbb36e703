"""`acmserve bench budget`: one long agent conversation under a budget of 6,000 tokens, treated in six ways.

Every eviction changes the prefix, so what stands behind it is computed again. Evicting at the ceiling, turn by turn,
computes most of the conversation again each time. One batch down to a low watermark pays that seldom, and moved KV does
not pay it at all. Beside these stand a conversation without a budget, and the two baselines that everyone has: recency
and summaries.

Counts do not depend on the weights, so a random one-layer model takes them. The model's words are scripted. Parser,
tool loop, budget, scheduler, cache and moves are real.

With `--model tiny-windows` or `tiny-recurrent` the model is a hybrid. Its exact runs are made twice: with boundaries in
front of each message, and without. Without boundaries the cache is as vLLM keeps it, so no end of an answer is kept
either.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from acmserve.bench.agent.conversation import LOW_WATERMARK, MAX_TOKENS, ConversationRun, run_conversation
from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.agent.scripted_agent import NUM_TASKS, Trace
from acmserve.bench.agent.scripted_server import HYBRIDS, TINY, check_scripted, read_trace, scripted_server
from acmserve.bench.budget.costs import COSTS
from acmserve.bench.budget.runs import (
    MOST_COMPUTED_PER_NEW,
    check_budget_run,
    check_compaction,
    check_pairs,
    computed_per_new,
    make_hybrid_runs,
    make_runs,
    new_tokens,
    written_by_agent,
)
from acmserve.bench.edit.exact_check import with_check
from acmserve.bench.eval.prices import add_price_options, prices_of
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import count, share
from acmserve.bench.harness.options import add_report_options, as_gate, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.provenance.measured import SERVER
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench budget`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, _measure, TREATMENTS, COSTS)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    found = measure(options.tasks) if options.model == TINY else measure_hybrid(options.model, options.tasks)
    return found | {"prices": asdict(prices_of(options))}


def measure(num_tasks: int) -> dict[str, Any]:
    """All runs on one server, at the same time: only counts are taken."""
    from transformers import AutoTokenizer

    trace, served = read_trace(num_tasks)
    runs = make_runs()
    with (
        scripted_server(TINY, "summarizing_model:SummarizingModel") as (url, _),
        ThreadPoolExecutor(len(runs)) as pool,
    ):
        checked = check_scripted(url, has_layers=False)
        list(pool.map(lambda run: run_conversation(url, trace, run, served, progress), runs))
    template = TOOLS_TEMPLATE.read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(prepare())
    new, written = new_tokens(trace, tokenizer, template), written_by_agent(trace, tokenizer)
    return with_check(as_report(trace, runs, new, num_written=written), checked)


def measure_hybrid(model: str, num_tasks: int) -> dict[str, Any]:
    """The runs on a hybrid model: on a server that keeps boundaries, and the exact ones on one that keeps none."""
    from transformers import AutoTokenizer

    trace, served = read_trace(num_tasks)
    runs, others = make_hybrid_runs(), make_hybrid_runs("-without")
    for own, engine in ((runs, {}), (others, {"max_boundary_mib": 0, "keep_tail": False})):
        with (
            scripted_server(model, "summarizing_model:SummarizingModel", engine=engine) as (url, _),
            ThreadPoolExecutor(len(own)) as pool,
        ):
            list(pool.map(partial(run_conversation, url, trace, tokenizer=served, say=progress), own))
    failures = check_pairs(runs, others)
    for run in others:
        run.title += ", no boundaries"
    template = TOOLS_TEMPLATE.read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(prepare())
    new, written = new_tokens(trace, tokenizer, template), written_by_agent(trace, tokenizer)
    return as_report(trace, [*runs, *others], new, model, failures, num_written=written)


def as_report(
    trace: Trace,
    runs: Sequence[ConversationRun],
    new: Sequence[int],
    model: str = TINY,
    failures: Sequence[str] = (),
    *,
    num_written: int,
) -> dict[str, Any]:
    """JSON-ready. No numbers when the gate is red. `num_written` are tokens that the agent writes in every run."""
    most = MOST_COMPUTED_PER_NEW if model == TINY else None
    failures = [*failures, *(failure for run in runs for failure in check_budget_run(run, trace, new, most))]
    failures += check_compaction(runs)
    return {
        "gate": as_gate(failures),
        "model": model,
        "budget": {"max_tokens": MAX_TOKENS, "low_watermark": LOW_WATERMARK},
        "trace": {
            "text": f"standard library of Python {platform.python_version()}",
            "num_turns": trace.num_turns,
            "digest": trace.digest,
            "new_tokens": list(new),
            "written_tokens": num_written,
        },
        "runs": [] if failures else [_row(run, new) for run in runs],
    }


def _row(run: ConversationRun, new: Sequence[int]) -> dict[str, Any]:
    turns, share = run.columns(), computed_per_new(run, new)
    return {
        "name": run.name,
        "title": run.title,
        "fidelity": run.acm["fidelity"],
        "budget": run.acm.get("budget"),
        "num_evictions": len(run.evictions),
        "max_prompt_tokens": max(turns["prompt_tokens"]),
        "total_prompt_tokens": sum(turns["prompt_tokens"]),
        "total_computed_tokens": sum(turns["computed_tokens"]),
        "total_moved_tokens": sum(turns["moved_tokens"]),
        "total_marker_tokens": sum(turn.markers for turn in run.turns),
        "num_summaries": sum(turn.num_summary_read > 0 for turn in run.turns),
        "summary_prompt_tokens": sum(turn.num_summary_read for turn in run.turns),
        "summary_computed_tokens": sum(turn.summary[0] for turn in run.turns),
        "summary_completion_tokens": sum(turn.summary[1] for turn in run.turns),
        "steady_computed_per_new": None if share is None else round(share, 3),
        "turns": {name: turns[name] for name in turns if name.endswith("_tokens")},
    }


def _spent(run: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens computed in one run, and those of them that were computed and written for summaries."""
    summaries = int(run["summary_computed_tokens"] + run["summary_completion_tokens"])
    return int(run["total_computed_tokens"]) + summaries, summaries


def _treatments(report: Report) -> Iterator[list[str]]:
    runs = report["runs"]
    for run in runs:
        computed, summaries = _spent(run)
        more = "" if run is runs[0] else share(computed / _spent(runs[0])[0] - 1)
        cells = [count(run["max_prompt_tokens"]), str(run["num_evictions"]), count(computed), count(summaries), more]
        yield [run["title"], *cells]


TREATMENTS = ResultTable(
    (
        "run",
        "largest prompt",
        "evictions",
        "tokens computed",
        "of these for summaries",
        "more than without a budget",
    ),
    _treatments,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench budget", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--tasks", type=positive, metavar="N", default=NUM_TASKS, help="tasks of about 11 turns (default 20)"
    )
    models = [TINY, *HYBRIDS]
    parser.add_argument(
        "--model",
        choices=models,
        default=TINY,
        help="a hybrid one takes exact runs with boundaries and without, and one with moves",
    )
    add_price_options(parser)
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark(
    "budget",
    "one long agent conversation under a token budget, treated in six ways",
    main,
    tuple(
        BenchmarkRun(name, ("budget", *more), can_plot=False, measures=SERVER, is_timed=False)
        for name, more in {
            "budget": (),
            "budget-windows": ("--model", "tiny-windows"),
            "budget-recurrent": ("--model", "tiny-recurrent"),
        }.items()
    ),
)
