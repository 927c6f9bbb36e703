"""`acmserve bench sculptor`: what context tools save and what they cost, on two scripted conversations of 000.

The counterpart of 000's Figure 6 (context before and after the tools) with what the figure leaves out: the prefill that
the tools themselves cause, without a cache, with exact prefix reuse, and with moved KV. Section 4.4 claims that
read-only tools reuse the cache and that folding pays for itself; the table shows both.

The model is SmolLM2 with its window opened to 32,768 tokens and its words scripted (`scripted_model.py`): text beyond
its 8,192 tokens means nothing to it, which changes neither token counts nor times. The first step reads the text and
costs the same everywhere, so it is left out of what the tools cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, as_gate, hand_over, progress, red_gate
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.harness.workloads import Workload, needle_chain, pi_llm, plan_script
from acmserve.bench.sculptor.plot import draw
from acmserve.bench.sculptor.run import Course, check_course, run_course
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

FIDELITIES = ("exact", "reuse")
MAX_MODEL_LEN = 32_768
FLAGS = (
    *("--served-model-name", "scripted", "--max-model-len", str(MAX_MODEL_LEN)),
    *("--hf-overrides", json.dumps({"max_position_embeddings": MAX_MODEL_LEN})),
    *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--logits-processors", "acmserve.bench.models.scripted_model:ScriptedModel"),
)


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench sculptor`; 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    workloads = (pi_llm(46, 8), needle_chain(5, 200)) if options.quick else (pi_llm(), needle_chain())
    machine = describe_machine()
    print(f"Context tools on scripted conversations, SmolLM2-135M in float32.\n{one_line(machine)}", flush=True)
    report = as_report(*measure(workloads, options.repetitions)) | {"machine": machine}
    return hand_over(report, as_table, draw, options)


def measure(workloads: Sequence[Workload], num_repetitions: int) -> tuple[list[Course], list[str]]:
    """Every workload in both fidelities, in turn; and why numbers may not be reported."""
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    model = prepare()
    tokenizer = ServedTokenizer(AutoTokenizer.from_pretrained(model))
    courses, failures = [], []
    with ServerProcess(model, FLAGS) as server:
        progress("starting the server (about half a minute)")
        url = server.wait_ready()
        for number in range(num_repetitions):
            for workload in workloads:
                script = plan_script(workload, tokenizer)
                for fidelity in FIDELITIES:
                    progress(f"repetition {number + 1} of {num_repetitions}: {workload.name}, {fidelity}")
                    course = run_course(url, workload, script, fidelity, f"{workload.name}-{fidelity}-{number}")
                    failures += check_course(course, workload)
                    courses.append(course)
    return courses, failures


def as_report(courses: Sequence[Course], failures: Sequence[str]) -> dict[str, Any]:
    """JSON-ready: one row for each workload and fidelity, counts of the last run and all times."""
    rows = []
    for workload, fidelity in dict.fromkeys((course.workload, course.fidelity) for course in courses):
        runs = [c for c in courses if (c.workload, c.fidelity) == (workload, fidelity)]
        last = runs[-1]
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
                "seconds_to_answer": [run.seconds_to_answer for run in runs],
                "seconds_to_follow_up": [run.seconds_to_follow_up for run in runs],
                "follow_up_receipt": last.follow_up,
                "receipts": last.receipts,
            }
        )
    return {"gate": as_gate(failures), "rows": rows}


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; no times when the gate is red."""
    if red := red_gate(report):
        return red
    lines = [
        "",
        f"{'':<22}{'context':>18}{'prefill that the tools cause':>40}{'first token':>14}{'next turn':>12}",
        f"{'':<22}{'before':>9}{'after':>9}{'no cache':>11}{'kept':>10}{'moved':>8}{'computed':>11}",
    ]
    for row in report["rows"]:
        times = (statistics.median(row[key]) for key in ("seconds_to_answer", "seconds_to_follow_up"))
        lines.append(
            f"{row['workload'] + ', ' + row['fidelity']:<22}{row['tokens_before']:>9,}{row['tokens_after']:>9,}"
            f"{row['uncached_tokens']:>11,}{row['kept_tokens']:>10,}{row['moved_tokens']:>8,}"
            f"{row['computed_tokens']:>11,}" + "".join(f"{value:>10.2f} s" for value in times)
        )
    return [*lines, "", "gate green: searches computed only what they appended, folds moved the text behind them once"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench sculptor", description=__doc__.split("\n\n")[1])
    parser.add_argument("--repetitions", type=int, default=2, metavar="N", help="runs of each case (default 2)")
    add_report_options(parser, quick="short texts: a look, not a measurement")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
