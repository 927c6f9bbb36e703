"""`acmserve bench map`: sixteen questions about one corpus in one conversation, without a context map and with one.

PEEK's claim is that an agent finds out again and again what it is looking at, and that a small map saves this. Its
price is in the cache. A map in the system message that changes makes everything behind it be computed again, unless the
rest is moved. The table shows both sides: what the agent does, and what the engine computes for it.

The agent is scripted: a fixed policy that makes a call only for what neither the map nor its last results say. It
writes the map's updates itself, as Distiller and Cartographer. So iterations, tokens and prefill are measured, not
wits. The savings are those of an agent that reads its map without fail. The score only shows that nothing was lost on
the way through guided decoding, the budget and the prompt. Server, tools, parser, map, cache and moves are real. The
model is a random one-layer model with SmolLM2's tokenizer and chat template, for only tokens are counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.agent.scripted_server import TINY, check_scripted, scripted_server
from acmserve.bench.edit.exact_check import with_check
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import count
from acmserve.bench.harness.options import add_report_options, as_gate
from acmserve.bench.harness.run_log import progress
from acmserve.bench.map.corpus import Corpus, CorpusQuestion, make_corpus, make_questions
from acmserve.bench.map.run import (
    BUDGET,
    EVOLVE_STEPS,
    MapRun,
    check_map_run,
    check_together,
    make_runs,
    run_questions,
)
from acmserve.bench.provenance.measured import SERVER


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench map`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, lambda options: measure(), WAYS)


def measure() -> dict[str, Any]:
    """All runs on one server, one after the other."""
    corpus, questions, runs = make_corpus(), make_questions(), make_runs()
    with scripted_server(TINY) as (url, _):
        checked = check_scripted(url, has_layers=False)
        for run in runs:
            run_questions(url, corpus, questions, run, progress)
    return with_check(as_report(runs, corpus, questions), checked)


def as_report(runs: Sequence[MapRun], corpus: Corpus, questions: Sequence[CorpusQuestion]) -> dict[str, Any]:
    """JSON-ready. No numbers when the gate is red."""
    failures = [failure for run in runs for failure in check_map_run(run, corpus, questions)] + check_together(runs)
    return {
        "gate": as_gate(failures),
        "corpus": {"digest": corpus.digest, "num_records": len(corpus.records)},
        "map": {
            "budget": BUDGET,
            "evolve_steps": EVOLVE_STEPS,
            "text": next((run.map_text for run in runs if run.map_text), None),
        },
        "questions": [question.text for question in questions],
        "runs": [] if failures else [_row(run, corpus, questions) for run in runs],
    }


def _row(run: MapRun, corpus: Corpus, questions: Sequence[CorpusQuestion]) -> dict[str, Any]:
    asked = run.asked
    counts = ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens")
    return {
        "name": run.name,
        "title": run.title,
        "fidelity": run.fidelity,
        "placement": run.placement,
        "num_iterations": sum(len(one.receipts) for one in asked),
        "score": statistics.mean(run.scores(corpus, questions)),
        **{f"total_{count}": sum(one.total(count) for one in asked) for count in counts},
        "total_completion_tokens": run.num_written,
        "update_prompt_tokens": run.update_tokens[0],
        "update_completion_tokens": run.update_tokens[1],
    }


def _ways(report: Report) -> Iterator[list[str]]:
    for run in report["runs"]:
        tokens = [count(run[name]) for name in ("total_prompt_tokens", "total_computed_tokens", "total_moved_tokens")]
        updates = count(run["update_prompt_tokens"] + run["update_completion_tokens"])
        yield [run["title"], str(run["num_iterations"]), *tokens, updates]


WAYS = ResultTable(("run", "iterations", "prompt tokens", "computed", "moved", "read and written by updates"), _ways)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench map", description=__doc__.split("\n\n")[1])
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark(
    "map",
    "what a context map saves an agent and what its updates cost, on a generated corpus",
    main,
    (BenchmarkRun("map", ("map",), can_plot=False, measures=SERVER, is_timed=False),),
)
