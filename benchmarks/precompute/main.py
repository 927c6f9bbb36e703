"""`acmserve bench ahead`: what the turn after an eviction waits for, when the engine may work while tools run.

The agent's conversation of `bench budget`, with a pause before every request, as its tools would take: 0.5 to 5
seconds, drawn by a seed, times `--scale`. Four courses, one after the other: `exact` with `ahead: predict`; `exact`;
`reuse`; and a stock engine that gets the very prompts of the first. What goes is evicted by CWL under a budget, or
cleared by `clear_tool_uses` of `context_management`. The time to the first token is told apart by turns in front of
which something was taken out, and plain appends beside them.

A number stands only where the model said what the script has, every receipt adds up, no prompt exceeds the budget, and
the weights, asked at every token, would have said what those of the stock engine would have said. The model's words are
scripted; the rest is real, and so are the weights with `--model smollm2`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.scripted_agent import Trace, make_trace
from acmserve.bench.budget.main import MAX_MODEL_LEN
from acmserve.bench.budget.run import MAX_TOKENS, MODEL
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, hand_over, positive, progress
from acmserve.bench.harness.server_process import ServerProcess, StockProcess
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.bench.models.witnessed_model import WITNESS, Agreement
from acmserve.bench.precompute.foreground import foreground_table, measure_foreground
from acmserve.bench.precompute.plot import draw
from acmserve.bench.precompute.run import (
    CLEARING,
    CWL,
    agreement,
    check_course,
    courses,
    held,
    read_counters,
    replay_on_stock,
    run_course,
    tool_pauses,
)
from acmserve.bench.precompute.table import as_report, as_table
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

_SEED = 23


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench ahead`; 0 when every number may be told, 1 when not."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.plot is not None and (options.answers or options.foreground):
        parser.error("--plot draws the conversation; --answers and --foreground have no plot")
    machine = describe_machine()
    print(one_line(machine), flush=True)
    if options.answers:
        return _answer(options, machine)
    if options.foreground:
        return hand_over(_measure_foreground(options) | {"machine": machine}, foreground_table, None, options)
    print(f"One conversation {held(options.policy, MAX_TOKENS)}, with pauses.", flush=True)
    report = measure(options.model, options.policy, options.tasks, options.scale) | {"machine": machine}
    return hand_over(report, as_table, draw, options)


def _answer(options: argparse.Namespace, machine: dict[str, Any]) -> int:
    # Imported late: they bring the engine, which `--help` can do without.
    from acmserve.bench.harness.engine import LocalEngine
    from acmserve.bench.precompute.answers import as_table as answers_table
    from acmserve.bench.precompute.answers import measure as measure_answers

    progress("starting the engine")
    engine = LocalEngine(prepare(), with_acmserve=True)
    try:
        report = measure_answers(engine, options.answers, _SEED, progress)
    finally:
        engine.close()
    return hand_over(report | {"machine": machine}, answers_table, None, options)


def _measure_foreground(options: argparse.Namespace) -> dict[str, Any]:
    trace, served = _trace(options.tasks)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        os.environ[WITNESS] = str(Path(folder) / "witness.jsonl")
        with ServerProcess(_weights(options.model, Path(folder)), _flags(options.model)) as server:
            return measure_foreground(server, trace, served, options.foreground, progress)


def _trace(num_tasks: int) -> tuple[Trace, Tokenizer]:
    """The conversation, and the tokenizer that the server counts with."""
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    served = ServedTokenizer(AutoTokenizer.from_pretrained(prepare()))
    trace = make_trace(read_library(), served, num_tasks)
    progress(f"{num_tasks} tasks, {trace.num_turns} turns; starting the server")
    return trace, served


def _weights(model: str, folder: Path) -> Path:
    return write_tiny_model(folder, MAX_MODEL_LEN[model]) if model == "tiny" else prepare()


def measure(model: str, policy: str, num_tasks: int, scale: float) -> dict[str, Any]:
    """Run all courses, one after the other, each under a cache salt of its own; the stock engine last."""
    trace, served = _trace(num_tasks)
    done = courses()
    agreed: Agreement | None = None
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        witness = Path(folder) / "witness.jsonl"
        os.environ[WITNESS] = str(witness)
        weights = _weights(model, Path(folder))
        with ServerProcess(weights, _flags(model)) as server:
            url = server.wait_ready()
            for course in done:
                before = read_counters(url)
                run_course(url, trace, course, policy, served, tool_pauses(course, scale), progress)
                time.sleep(1.0)
                course.precompute = {name: value - before[name] for name, value in read_counters(url).items()}
                course.failures = check_course(course, trace, policy)
        if not any(course.failures for course in done):
            flags = [*_flags(model), "--enable-prompt-tokens-details", "--enforce-eager", "--dtype", "float32"]
            with StockProcess(weights, flags) as server:
                done.append(replay_on_stock(server.wait_ready(), done[0], trace, progress))
            if not done[-1].failures:
                agreed = agreement(done[0], trace, witness)
    return as_report(model, policy, trace, done, agreed, scale)


def _flags(model: str) -> list[str]:
    window = MAX_MODEL_LEN[model]
    return [
        *("--served-model-name", MODEL, "--max-model-len", str(window)),
        *("--hf-overrides", json.dumps({"max_position_embeddings": window})),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--logits-processors", "acmserve.bench.models.witnessed_model:WitnessedModel"),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench ahead", description=__doc__.split("\n\n")[1])
    parser.add_argument("--model", choices=list(MAX_MODEL_LEN), default="smollm2", help="tiny: random weights")
    parser.add_argument(
        "--policy", choices=(CWL, CLEARING), default=CWL, help="what is taken out, and when (default cwl)"
    )
    parser.add_argument("--tasks", type=positive, metavar="N", default=6, help="tasks of about 11 turns (default 6)")
    parser.add_argument("--scale", type=float, metavar="X", default=1.0, help="length of the pauses (default 1)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--answers",
        type=positive,
        metavar="N",
        help="instead: N cases of fold, then answer; accuracy and latency of exact, exact computed ahead, and reuse",
    )
    instead.add_argument(
        "--foreground",
        type=positive,
        metavar="N",
        help="instead: four sessions without pauses, N rounds with and N without work ahead",
    )
    add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
