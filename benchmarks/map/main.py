"""`acmserve bench map`: sixteen questions about one corpus in one conversation, without a context map and with one.

PEEK's claim is that an agent finds out again and again what it is looking at, and that a small map saves this. Its
price is in the cache: a map in the system message that changes makes everything behind it be computed again, unless the
rest is moved. The table shows both sides: what the agent does, and what the engine computes for it.

The agent is scripted: a fixed policy that makes a call only for what neither the map nor its last results say, and that
writes the map's updates itself, as Distiller and Cartographer. So iterations, tokens and prefill are measured, not
wits: the savings are those of an agent that reads its map without fail, and the score only shows that nothing was lost
on the way through guided decoding, the budget and the prompt. Server, tools, parser, map, cache and moves are real. The
model is a random one-layer model with SmolLM2's tokenizer and chat template, for only tokens are counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, as_gate, hand_over, progress, red_gate
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.map.corpus import Corpus, Question, make_corpus, make_questions
from acmserve.bench.map.plot import draw
from acmserve.bench.map.run import (
    BUDGET,
    EVOLVE_STEPS,
    MODEL,
    PLANS,
    Course,
    Plan,
    check_course,
    check_together,
    run_course,
)
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.models.smollm2 import TOOLS_TEMPLATE

NAMES = tuple(plan.name for plan in PLANS)
MAX_MODEL_LEN = 32_768
FLAGS = (
    *("--served-model-name", MODEL, "--max-model-len", str(MAX_MODEL_LEN)),
    *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--logits-processors", "acmserve.bench.models.scripted_model:ScriptedModel"),
)
# fmt: off
_COLUMNS = {
    "iterations": 12, "prompts": 11, "kept": 10, "moved": 9, "computed": 10, "after updates": 15, "written": 9,
    "updates": 9, "last prompt": 13, "score": 7,
}
# fmt: on


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench map`; 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    plans = [plan for plan in PLANS if plan.name in (options.courses or NAMES)]
    machine = describe_machine()
    print(f"One corpus, {len(make_questions())} questions, {len(plans)} ways to ask.\n{one_line(machine)}", flush=True)
    report = measure(plans) | {"machine": machine}
    return hand_over(report, as_table, draw, options)


def measure(plans: Sequence[Plan]) -> dict[str, Any]:
    """Run the plans on one server, one after the other."""
    corpus, questions = make_corpus(), make_questions()
    progress("starting the server (about half a minute)")
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        model = write_tiny_model(Path(folder), MAX_MODEL_LEN)
        with ServerProcess(model, FLAGS, kv_gib=1) as server:
            url = server.wait_ready()
            courses = [run_course(url, corpus, questions, plan, progress) for plan in plans]
    failures = [failure for course in courses for failure in check_course(course, corpus, questions)]
    return as_report(courses, corpus, questions, [*failures, *check_together(courses)])


def as_report(
    courses: Sequence[Course], corpus: Corpus, questions: Sequence[Question], failures: Sequence[str]
) -> dict[str, Any]:
    """JSON-ready; no numbers when the gate is red."""
    texts = [course.map_text for course in courses if course.map_text]
    return {
        "gate": as_gate(failures),
        "corpus": {"digest": corpus.digest, "num_records": len(corpus.records)},
        "map": {"budget": BUDGET, "evolve_steps": EVOLVE_STEPS, "text": texts[0] if texts else None},
        "questions": [question.text for question in questions],
        "courses": [] if failures else [_row(course, corpus, questions) for course in courses],
    }


def _row(course: Course, corpus: Corpus, questions: Sequence[Question]) -> dict[str, Any]:
    plan, asked = course.plan, course.asked
    totals = {
        f"total_{count}": sum(one.total(count) for one in asked)
        for count in ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens")
    }
    return {
        "name": plan.name,
        "title": plan.title,
        "fidelity": plan.fidelity,
        "placement": plan.placement,
        "num_iterations": course.num_steps,
        "score": statistics.mean(course.scores(corpus, questions)),
        **totals,
        "total_completion_tokens": course.num_written,
        "update_prompt_tokens": course.update_tokens[0],
        "update_completion_tokens": course.update_tokens[1],
        "questions": {
            "iterations": [len(one.receipts) for one in asked],
            "prompt_tokens": [one.total("prompt_tokens") for one in asked],
            "moved_tokens": [one.total("moved_tokens") for one in asked],
            "computed_tokens": [one.total("computed_tokens") for one in asked],
            "first_prompt_tokens": [one.receipts[0]["prompt_tokens"] for one in asked],
            "first_computed_tokens": [one.receipts[0]["computed_tokens"] for one in asked],
            "map_version": [one.version for one in asked],
            "map_tokens": [one.map_tokens for one in asked],
        },
    }


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    lines = ["", " " * 20 + "".join(f"{head:>{width}}" for head, width in _COLUMNS.items())]
    for row in report["courses"]:
        cells = (
            f"{row['num_iterations']:,}",
            *(f"{row[f'total_{count}_tokens']:,}" for count in ("prompt", "kept", "moved", "computed")),
            f"{after_updates(row):,}" if row["placement"] else "-",
            f"{row['total_completion_tokens']:,}",
            f"{row['update_prompt_tokens'] + row['update_completion_tokens']:,}" if row["placement"] else "-",
            f"{row['questions']['first_prompt_tokens'][-1]:,}",
            f"{row['score']:.2f}",
        )
        told = "".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS.values(), strict=True))
        lines.append(f"{row['title']:<20}{told}")
    return [
        *lines,
        "",
        f"after updates: computed for the first prompts of the {EVOLVE_STEPS} questions that read a new map",
        "written: by the agent. updates: what Distiller and Cartographer read and wrote, in the background, as if",
        "nothing of it were cached",
        "The agent is scripted, so iterations are those of one that reads its map without fail; scores only show that",
        "nothing was lost. gate green: answers right, receipts add up, nothing computed but slots and what is new",
    ]


def after_updates(row: dict[str, Any]) -> int:
    """Tokens computed in the first prompts that read another map than the question before."""
    versions, computed = row["questions"]["map_version"], row["questions"]["first_computed_tokens"]
    return sum(computed[n] for n in range(1, len(versions)) if versions[n] != versions[n - 1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench map", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--courses", nargs="+", choices=NAMES, metavar="NAME", help=f"some of {', '.join(NAMES)} (default: all)"
    )
    add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
