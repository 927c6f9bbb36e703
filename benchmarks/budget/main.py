"""`acmserve bench budget`: one long agent conversation under a budget of 6,000 tokens, treated in six ways.

The weakness that 002 names itself (its section 5): every eviction changes the prefix, so what stands behind is computed
anew. Four courses show it and two remedies: evicting at the ceiling, turn by turn, computes most of the conversation
again each time; one batch down to a low watermark pays that seldom; and moved KV does not pay it at all. Beside them a
conversation without a budget, and the two baselines that everyone has, recency and summaries.

Counts do not depend on the weights, so they are taken with a random one-layer model that has SmolLM2's tokenizer and
chat template. `--model smollm2` runs a shorter trace on the real weights, one course after the other, for the time to
the first token. The model's words are scripted; parser, tool loop, budget, scheduler, cache and moves are real.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from acmserve.bench.agent.scripted_agent import NUM_TASKS, Trace, make_trace
from acmserve.bench.budget.plot import draw
from acmserve.bench.budget.run import LOW_WATERMARK, MAX_TOKENS, MODEL, PLANS, Course, Plan, check_course, new_tokens
from acmserve.bench.budget.run import run_course as run
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, as_gate, hand_over, progress, red_gate
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

NAMES = tuple(plan.name for plan in PLANS)
MAX_MODEL_LEN = {"tiny": 131_072, "smollm2": 32_768}
DEFAULT_POLICIES = {"tiny": NAMES, "smollm2": ("cwl-batched", "cwl-moves")}
DEFAULT_TASKS = {"tiny": NUM_TASKS, "smollm2": 6}
_WIDTHS = (9, 12, 11, 8, 10, 11, 11, 8, 14)


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench budget`; 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    names = options.policies or DEFAULT_POLICIES[options.model]
    plans = [plan for plan in PLANS if plan.name in names]
    machine = describe_machine()
    print(f"One conversation, {MAX_TOKENS:,} tokens, treated in {len(plans)} ways.\n{one_line(machine)}", flush=True)
    report = measure(options.model, plans, options.tasks or DEFAULT_TASKS[options.model]) | {"machine": machine}
    return hand_over(report, as_table, draw, options)


def measure(model: str, plans: Sequence[Plan], num_tasks: int) -> dict[str, Any]:
    """Run the plans on one server: together where only counts are taken, else one after the other."""
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepare())
    served = ServedTokenizer(tokenizer)
    progress("reading the standard library")
    trace = make_trace(read_library(), served, num_tasks)
    progress(f"{num_tasks} tasks, {trace.num_turns} turns; starting the server (about half a minute)")
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        weights = write_tiny_model(Path(folder), MAX_MODEL_LEN[model]) if model == "tiny" else prepare()
        with ServerProcess(weights, _flags(model)) as server:
            url = server.wait_ready()
            with ThreadPoolExecutor(len(plans) if model == "tiny" else 1) as pool:
                runs = [pool.submit(run, url, trace, plan, plan.name, served, progress) for plan in plans]
                courses = [one.result() for one in runs]
    whole = [course for course in courses if len(course.turns) == trace.num_turns]
    new = new_tokens(trace, whole[0], tokenizer, TOOLS_TEMPLATE.read_text(encoding="utf-8")) if whole else []
    failures = [failure for course in courses for failure in check_course(course, trace, new)]
    return as_report(model, trace, courses, new, failures)


def _flags(model: str) -> list[str]:
    window = MAX_MODEL_LEN[model]
    return [
        *("--served-model-name", MODEL, "--max-model-len", str(window)),
        *("--hf-overrides", json.dumps({"max_position_embeddings": window})),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--logits-processors", "acmserve.bench.models.summarizing_model:SummarizingModel"),
    ]


def as_report(
    model: str, trace: Trace, courses: Sequence[Course], new: Sequence[int], failures: Sequence[str]
) -> dict[str, Any]:
    """JSON-ready; no numbers when the gate is red. Seconds only where the weights are real."""
    return {
        "gate": as_gate(failures),
        "model": model,
        "budget": {"max_tokens": MAX_TOKENS, "low_watermark": LOW_WATERMARK},
        "trace": {
            "text": f"standard library of Python {platform.python_version()}",
            "num_turns": trace.num_turns,
            "digest": trace.digest,
            "new_tokens": list(new),
        },
        "courses": [] if failures else [_course(course, new, timed=model != "tiny") for course in courses],
    }


def _course(course: Course, new: Sequence[int], *, timed: bool) -> dict[str, Any]:
    turns, share = course.turns, course.computed_per_new(new)
    told = {
        "name": course.plan.name,
        "title": course.plan.title,
        "fidelity": course.plan.fidelity,
        "budget": course.plan.budget or None,
        "num_evictions": len(course.evictions),
        "max_prompt_tokens": max(turn.prompt for turn in turns),
        "total_prompt_tokens": sum(turn.prompt for turn in turns),
        "total_computed_tokens": sum(turn.computed for turn in turns),
        "total_moved_tokens": sum(turn.receipt["moved_tokens"] for turn in turns),
        "total_marker_tokens": sum(turn.markers for turn in turns),
        "summary_prompt_tokens": sum(turn.summary[0] for turn in turns),
        "summary_completion_tokens": sum(turn.summary[1] for turn in turns),
        "steady_computed_per_new": None if share is None else round(share, 3),
        "turns": {
            "prompt_tokens": [turn.prompt for turn in turns],
            "computed_tokens": [turn.computed for turn in turns],
            "moved_tokens": [turn.receipt["moved_tokens"] for turn in turns],
            "evicted_tokens": [turn.evicted for turn in turns],
            "summary_tokens": [sum(turn.summary) for turn in turns],
        },
    }
    if timed:
        edited = set(course.evictions)
        told["turns"]["seconds"] = [round(turn.seconds, 3) for turn in turns]
        told["median_seconds_after_eviction"] = _median([turns[n].seconds for n in sorted(edited)])
        told["median_seconds_plain"] = _median([turn.seconds for n, turn in enumerate(turns) if n and n not in edited])
    return told


def _median(seconds: Sequence[float]) -> float | None:
    return round(statistics.median(seconds), 3) if seconds else None


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    num_turns, num_new = report["trace"]["num_turns"], sum(report["trace"]["new_tokens"])
    heads = ("largest", "prompts", "computed", "a turn", "moved", "evictions", "summaries", "more", "computed/new")
    lines = [
        f"{num_turns} turns with {num_new:,} new tokens. A batch evicts down to {LOW_WATERMARK:,} tokens.",
        "",
        " " * 26 + "".join(f"{head:>{width}}" for head, width in zip(heads, _WIDTHS, strict=True)),
    ]
    least = next((_spent(row) for row in report["courses"] if row["budget"] is None), None)
    for row in report["courses"]:
        share, num_computed = row["steady_computed_per_new"], row["total_computed_tokens"]
        numbers = (
            row["max_prompt_tokens"],
            row["total_prompt_tokens"],
            num_computed,
            round(num_computed / num_turns),
            row["total_moved_tokens"],
            row["num_evictions"],
            row["summary_prompt_tokens"] + row["summary_completion_tokens"],
        )
        beside = "-" if least is None else f"{_spent(row) / least - 1:+.0%}"
        cells = [*(f"{number:,}" for number in numbers), beside, "-" if share is None else f"{share:.2f}"]
        told = "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
        lines.append(f"{row['title']:<26}{told}")
    lines += [
        "",
        "more: computed tokens and those of summaries, beside a conversation without a budget",
        "computed/new: the same for each new token or marker, from the first eviction on. What the model says itself",
        "is new, but its KV is there once it is said, so even a conversation without a budget has less than 1.",
    ]
    for row in report["courses"]:
        if row.get("median_seconds_after_eviction") is not None:
            lines.append(
                f"{row['title']}: first token after {row['median_seconds_after_eviction']:.2f} s on a turn with an "
                f"eviction, {row['median_seconds_plain']:.2f} s on others (medians)"
            )
    return [*lines, "gate green: no prompt above the budget, no orphan, receipts add up, one trace in every course"]


def _spent(row: dict[str, Any]) -> int:
    """Tokens computed for the prompts of a course, and read and written for its summaries."""
    spent: int = row["total_computed_tokens"] + row["summary_prompt_tokens"] + row["summary_completion_tokens"]
    return spent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench budget", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--model",
        choices=list(MAX_MODEL_LEN),
        default="tiny",
        help="tiny (default): random weights, for counts; smollm2: the bundled model, for seconds",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=NAMES,
        metavar="NAME",
        help=f"some of {', '.join(NAMES)} (default: all; with smollm2 the last two)",
    )
    parser.add_argument("--tasks", type=int, metavar="N", help="tasks of about 11 turns (default 20; with smollm2 6)")
    add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
