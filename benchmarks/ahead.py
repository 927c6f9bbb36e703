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
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent_trace import Trace, make_trace
from acmserve.bench.ahead_plot import draw
from acmserve.bench.ahead_run import (
    BUDGET,
    CLEARING,
    CWL,
    EDITS,
    PREDICT,
    Course,
    agreement,
    check_course,
    courses,
    replay_on_stock,
    run_course,
)
from acmserve.bench.budget import MAX_MODEL_LEN
from acmserve.bench.budget_run import MAX_TOKENS, MODEL
from acmserve.bench.library_text import read_library
from acmserve.bench.machine import describe_machine, one_line
from acmserve.bench.pause import TOOL_SECONDS
from acmserve.bench.report_options import add_report_options, as_json, positive, progress
from acmserve.bench.server_process import HttpProcess, ServerProcess
from acmserve.bench.tiny_model import write_tiny_model
from acmserve.bench.witnessed_model import WITNESS, Agreement
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

_WIDTH = 16
_HEADS = (
    *(("evictions", 10), ("foreseen", 10), ("after an eviction", 20), ("append", 18)),
    *(("/ append", 14), ("new", 14), ("old", 14), ("used", 6)),
)
NUM_SIMILAR = 5
"""Plain appends that a turn after an eviction is held against: those that bring most nearly as many tokens."""


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench ahead`; 0 when every number may be told, 1 when not."""
    options = _parser().parse_args(argv)
    machine = describe_machine()
    print(f"One conversation under {MAX_TOKENS:,} tokens, with pauses.\n{one_line(machine)}", flush=True)
    report = measure(options.model, options.policy, options.tasks, options.scale) | {"machine": machine}
    print("\n".join(as_table(report)))
    if options.json is not None:
        options.json.write_text(as_json(report), encoding="utf-8")
    if options.plot is not None and not report["failures"]:
        missing = draw(report, one_line(machine), options.plot)
        if missing:
            progress(missing)
    return 1 if report["failures"] else 0


def measure(model: str, policy: str, num_tasks: int, scale: float) -> dict[str, Any]:
    """Run all courses, one after the other, each under a cache salt of its own; the stock engine last."""
    from transformers import AutoTokenizer

    from acmserve.server.tokenizer import ServedTokenizer

    served = ServedTokenizer(AutoTokenizer.from_pretrained(prepare()))
    trace = make_trace(read_library(), served, num_tasks)
    progress(f"{num_tasks} tasks, {trace.num_turns} turns; starting the server")
    done = courses()
    agreed: Agreement | None = None
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        witness = Path(folder) / "witness.jsonl"
        os.environ[WITNESS] = str(witness)
        weights = write_tiny_model(Path(folder), MAX_MODEL_LEN[model]) if model == "tiny" else prepare()
        with ServerProcess(weights, _flags(model)) as server:
            url = server.wait_ready()
            for course in done:
                run_course(url, trace, course, policy, served, scale, progress)
                course.failures = check_course(course, trace, policy)
        if not any(course.failures for course in done):
            with _stock(weights, model) as server:
                done.append(replay_on_stock(server.wait_ready(), done[0], trace, progress))
            if not done[-1].failures:
                agreed = agreement(done[0], trace, witness)
    return as_report(model, policy, trace, done, agreed, scale)


def _stock(weights: Path, model: str) -> HttpProcess:
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights)]
    flags = [*_flags(model), "--enable-prompt-tokens-details", "--enforce-eager", "--dtype", "float32"]
    environ = {"VLLM_PLUGINS": "", "VLLM_CPU_KVCACHE_SPACE": "3", "OMP_WAIT_POLICY": "passive"}
    return HttpProcess(lambda port: [*command, "--port", str(port), *flags], environ)


def _flags(model: str) -> list[str]:
    window = MAX_MODEL_LEN[model]
    return [
        *("--served-model-name", MODEL, "--max-model-len", str(window)),
        *("--hf-overrides", json.dumps({"max_position_embeddings": window})),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--logits-processors", "acmserve.bench.witnessed_model:WitnessedModel"),
    ]


def as_report(
    model: str, policy: str, trace: Trace, done: Sequence[Course], agreed: Agreement | None, scale: float
) -> dict[str, Any]:
    """JSON-ready; no numbers where something failed."""
    failures = [failure for course in done for failure in course.failures]
    if agreed is not None and agreed.num_different > agreed.num_ties:
        failures.append(
            f"{PREDICT}: {agreed.num_different - agreed.num_ties} of {agreed.num_tokens} tokens are not stock's"
        )
    told = None
    if agreed is not None:
        told = {"num_tokens": agreed.num_tokens, "num_different": agreed.num_different, "num_ties": agreed.num_ties}
    return {
        "failures": failures,
        "model": model,
        "policy": policy,
        "max_tokens": MAX_TOKENS,
        "rules": BUDGET if policy == CWL else {"edits": EDITS},
        "tool_seconds": [scale * seconds for seconds in TOOL_SECONDS],
        "trace": {"num_turns": trace.num_turns, "digest": trace.digest},
        "agreement_with_stock": told,
        "courses": [] if failures else [_row(course) for course in done],
    }


def _row(course: Course) -> dict[str, Any]:
    """Appends are those behind a pause: a later step of a loop follows the one before at once."""
    numbers = range(1, len(course.turns))
    edited = [n for n in numbers if course.turns[n].evicted]
    plain = [n for n in numbers if not course.turns[n].evicted and course.rests[n]]
    computed, used = course.ahead.get("ahead_computed_tokens", 0), course.ahead.get("ahead_used_tokens", 0)
    return {
        "name": course.name,
        "num_evictions": len(edited),
        "num_foreseen": sum(course.turns[n].receipt["ahead_tokens"] > 0 for n in edited),
        "eviction_seconds": _spread([course.turns[n].seconds for n in edited]),
        "plain_seconds": _spread([course.turns[n].seconds for n in plain]),
        "eviction_over_similar": _spread([_over_similar(course, n, plain) for n in edited]) if plain else None,
        "eviction_new_tokens": _spread([_new(course, n) for n in edited]),
        "eviction_old_tokens": _spread([max(0, course.turns[n].computed - _new(course, n)) for n in edited]),
        "plain_new_tokens": _spread([_new(course, n) for n in plain]),
        "ahead": course.ahead,
        "ahead_used_share": used / computed if computed else None,
        "turns": {
            "seconds": [round(turn.seconds, 4) for turn in course.turns],
            "prompt_tokens": [turn.prompt for turn in course.turns],
            "computed_tokens": [turn.computed for turn in course.turns],
            "ahead_tokens": [turn.receipt["ahead_tokens"] for turn in course.turns],
            "evicted_tokens": [turn.evicted for turn in course.turns],
            "rests": [int(rest) for rest in course.rests],
        },
    }


def _over_similar(course: Course, number: int, plain: Sequence[int]) -> float:
    """Seconds of a turn over the median of the plain appends that bring most nearly as many tokens."""
    new = _new(course, number)
    similar = sorted(plain, key=lambda n: abs(_new(course, n) - new))[:NUM_SIMILAR]
    return course.turns[number].seconds / statistics.median(course.turns[n].seconds for n in similar)


def _new(course: Course, number: int) -> int:
    """Tokens that a turn's prompt has and the one before had not, notes of what was evicted among them."""
    turn, before = course.turns[number], course.turns[number - 1]
    return turn.prompt - (before.prompt - turn.evicted)


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median and 90th percentile, the nearest rank."""
    if not values:
        return None
    p90 = sorted(values)[math.ceil(0.9 * len(values)) - 1]
    return {"median": round(statistics.median(values), 4), "p90": round(p90, 4)}


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons where something failed."""
    if report["failures"]:
        return ["NOTHING IS REPORTED:", *(f"  {failure}" for failure in report["failures"][:20])]
    low, high = report["tool_seconds"]
    lines = [
        f"{report['policy']}, {report['trace']['num_turns']} turns, {low:g} to {high:g} s between them. Median, p90:",
        "",
        " " * _WIDTH + "".join(f"{head:>{width}}" for head, width in _HEADS),
    ]
    lines += [_line(row) for row in report["courses"]]
    agreed = report["agreement_with_stock"]
    differing = (
        f"{agreed['num_different']} of {agreed['num_tokens']:,}, {agreed['num_ties']} of them too near to tell apart"
    )
    return [
        *lines,
        "",
        "Seconds to the first token. / append: each eviction over the plain appends that bring about as many tokens.",
        "new, old: tokens that the turn brings, and that it computes again. used: of the tokens computed ahead; a plan",
        "that is still kept at the end counts as unused.",
        f"Tokens that would have been others than the stock engine's: {differing}.",
    ]


def _line(row: dict[str, Any]) -> str:
    used = row["ahead_used_share"]
    cells = [
        str(row["num_evictions"]),
        str(row["num_foreseen"]),
        _pair(row["eviction_seconds"], ".2f", " s"),
        _pair(row["plain_seconds"], ".2f", " s"),
        _pair(row["eviction_over_similar"], ".2f", "x"),
        _pair(row["eviction_new_tokens"], ",.0f"),
        _pair(row["eviction_old_tokens"], ",.0f"),
        "-" if used is None else f"{used:.0%}",
    ]
    widths = (width for _, width in _HEADS)
    return f"{row['name']:<{_WIDTH}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _pair(spread: dict[str, float] | None, form: str, unit: str = "") -> str:
    return "-" if spread is None else f"{spread['median']:{form}}{unit}, {spread['p90']:{form}}{unit}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench ahead", description=__doc__.split("\n\n")[1])
    parser.add_argument("--model", choices=list(MAX_MODEL_LEN), default="smollm2", help="tiny: random weights")
    parser.add_argument(
        "--policy", choices=(CWL, CLEARING), default=CWL, help="what is taken out, and when (default cwl)"
    )
    parser.add_argument("--tasks", type=positive, metavar="N", default=6, help="tasks of about 11 turns (default 6)")
    parser.add_argument("--scale", type=float, metavar="X", default=1.0, help="length of the pauses (default 1)")
    add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
