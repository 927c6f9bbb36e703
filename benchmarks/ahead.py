"""`acmserve bench ahead`: what the turn after an eviction waits for, when the engine may work while tools run.

The agent's conversation of `bench budget`, with a pause before every request, as its tools would take: 0.5 to 5
seconds, drawn by a seed, times `--scale`. Three courses, one after the other: `exact`; `exact` with `ahead: predict`;
`reuse`. The time to the first token is told apart by turns in front of which something was evicted, and plain appends
beside them.

A number stands only where the model said what the script has, every receipt adds up, no prompt exceeds the budget, and
no call is left alone. The model's words are scripted; the rest is real, and so are the weights with `--model smollm2`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from acmserve.bench.agent_trace import SYSTEM, TOOLS, Trace, make_trace
from acmserve.bench.budget import MAX_MODEL_LEN, as_json
from acmserve.bench.budget_run import LOW_WATERMARK, MAX_TOKENS, MODEL, Turn, as_turn
from acmserve.bench.chat_stream import ask
from acmserve.bench.library_text import read_library
from acmserve.bench.machine import describe_machine, one_line
from acmserve.bench.server_process import ServerProcess
from acmserve.bench.tiny_model import write_tiny_model
from acmserve.context.tokens import Tokenizer
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

TOOL_SECONDS = (0.5, 5.0)
BUDGET = {"max_tokens": MAX_TOKENS, "low_watermark": LOW_WATERMARK, "policy": "cwl"}
_SEED = 23
_MAX_COMPLETION = 600
_HEADS = (
    *(("evictions", 10), ("foreseen", 10), ("after an eviction", 22)),
    *(("append", 18), ("new", 14), ("old", 14), ("used", 7)),
)
_AHEAD = ("ahead_computed_tokens", "ahead_used_tokens", "ahead_wasted_tokens", "ahead_seconds")


@dataclass(slots=True)
class Course:
    """One treatment of the trace. `rests`: whether a pause came before the turn. `ahead`: the engine's counters."""

    name: str
    acm: dict[str, Any]
    turns: list[Turn] = field(default_factory=list)
    rests: list[bool] = field(default_factory=list)
    ahead: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def courses() -> list[Course]:
    """What is compared."""
    return [
        Course("exact", {"fidelity": "exact", "ahead": "off"}),
        Course("exact, predict", {"fidelity": "exact", "ahead": "predict"}),
        Course("reuse", {"fidelity": "reuse", "ahead": "off"}),
    ]


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench ahead`; 0 when every number may be told, 1 when not."""
    options = _parser().parse_args(argv)
    machine = describe_machine()
    print(f"One conversation under {MAX_TOKENS:,} tokens, with pauses.\n{one_line(machine)}", flush=True)
    report = measure(options.model, options.tasks, options.scale) | {"machine": machine}
    print("\n".join(as_table(report)))
    if options.json is not None:
        options.json.write_text(as_json(report), encoding="utf-8")
    return 1 if report["failures"] else 0


def measure(model: str, num_tasks: int, scale: float) -> dict[str, Any]:
    """Run all courses on one server, one after the other, each under a cache salt of its own."""
    from transformers import AutoTokenizer

    from acmserve.server.tokenizer import ServedTokenizer

    served = ServedTokenizer(AutoTokenizer.from_pretrained(prepare()))
    trace = make_trace(read_library(), served, num_tasks)
    _progress(f"{num_tasks} tasks, {trace.num_turns} turns; starting the server")
    done = courses()
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        weights = write_tiny_model(Path(folder), MAX_MODEL_LEN[model]) if model == "tiny" else prepare()
        with ServerProcess(weights, _flags(model)) as server:
            url = server.wait_ready()
            for course in done:
                before = _counters(url)
                run_course(url, trace, course, served, scale)
                time.sleep(1.0)
                course.ahead = {name: value - before[name] for name, value in _counters(url).items()}
                course.failures += check_course(course, trace)
    return as_report(model, trace, done, scale)


def _flags(model: str) -> list[str]:
    window = MAX_MODEL_LEN[model]
    return [
        *("--served-model-name", MODEL, "--max-model-len", str(window)),
        *("--hf-overrides", json.dumps({"max_position_embeddings": window})),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--logits-processors", "acmserve.bench.scripted_model:ScriptedModel"),
    ]


def run_course(url: str, trace: Trace, course: Course, tokenizer: Tokenizer, scale: float) -> None:
    """The whole trace in one session. Stops early when the model did not say what the script has."""
    draw = random.Random(_SEED)
    low, high = map(math.log, TOOL_SECONDS)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for number, request in enumerate(trace.requests):
        if request.asked is not None:
            messages.append({"role": "user", "content": request.asked})
            _progress(f"{course.name}: {request.asked}")
        time.sleep(scale * math.exp(draw.uniform(low, high)))
        body = {
            "model": MODEL,
            "session_id": course.name,
            "cache_salt": course.name,
            "temperature": 0,
            "max_tokens": _MAX_COMPLETION,
            "tools": TOOLS,
            "messages": messages,
            "acm": {"tools": "cwl", "budget": BUDGET} | course.acm,
            "vllm_xargs": {"script_id": f"{course.name}-{number}", "script": list(request.said)},
        }
        reply = ask(url, body)
        if len(reply.steps) != len(request.said) or ("tool_calls" in reply.message) != (request.result is not None):
            course.failures.append(f"{course.name}: request {number} was answered with {reply.message}")
            return
        pairs = zip(reply.steps, reply.seconds, strict=True)
        course.turns += [as_turn(step, seconds, trace.descriptions, tokenizer) for step, seconds in pairs]
        course.rests += [index == 0 for index in range(len(reply.steps))]
        messages.append(reply.message)
        if request.result is not None:
            call = reply.message["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": call, "content": request.result})


def check_course(course: Course, trace: Trace) -> list[str]:
    """Why the numbers of a course may not be told."""
    failures = []
    if len(course.turns) != trace.num_turns:
        failures.append(f"{course.name}: {len(course.turns)} of {trace.num_turns} turns")
    for number, turn in enumerate(course.turns):
        counts = [turn.receipt[name] for name in ("kept_tokens", "moved_tokens", "computed_tokens")]
        if sum(counts) != turn.prompt or turn.receipt["ahead_tokens"] > counts[0]:
            failures.append(f"{course.name}, turn {number}: the receipt does not add up: {turn.receipt}")
        if turn.prompt > MAX_TOKENS or turn.is_unmet:
            failures.append(f"{course.name}, turn {number}: {turn.prompt} tokens, the budget is {MAX_TOKENS}")
    return failures


def as_report(model: str, trace: Trace, done: Sequence[Course], scale: float) -> dict[str, Any]:
    """JSON-ready; no numbers where something failed."""
    failures = [failure for course in done for failure in course.failures]
    return {
        "failures": failures,
        "model": model,
        "budget": BUDGET,
        "tool_seconds": [scale * seconds for seconds in TOOL_SECONDS],
        "trace": {"num_turns": trace.num_turns, "digest": trace.digest},
        "courses": [] if failures else [_row(course) for course in done],
    }


def _row(course: Course) -> dict[str, Any]:
    """Appends are those behind a pause: a later step of a loop follows the one before at once."""
    numbers = range(1, len(course.turns))
    edited = [n for n in numbers if course.turns[n].evicted]
    plain = [n for n in numbers if not course.turns[n].evicted and course.rests[n]]
    computed, used = course.ahead["ahead_computed_tokens"], course.ahead["ahead_used_tokens"]
    return {
        "name": course.name,
        "num_evictions": len(edited),
        "num_foreseen": sum(course.turns[n].receipt["ahead_tokens"] > 0 for n in edited),
        "eviction_seconds": _spread([course.turns[n].seconds for n in edited]),
        "plain_seconds": _spread([course.turns[n].seconds for n in plain]),
        "eviction_new_tokens": _spread([_new(course, n) for n in edited]),
        "eviction_old_tokens": _spread([max(0, course.turns[n].computed - _new(course, n)) for n in edited]),
        "plain_new_tokens": _spread([_new(course, n) for n in plain]),
        "ahead": course.ahead,
        "ahead_used_share": used / computed if computed else None,
        "turns": {
            "seconds": [round(turn.seconds, 4) for turn in course.turns],
            "computed_tokens": [turn.computed for turn in course.turns],
            "ahead_tokens": [turn.receipt["ahead_tokens"] for turn in course.turns],
            "evicted_tokens": [turn.evicted for turn in course.turns],
        },
    }


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
        f"{report['trace']['num_turns']} turns, {low:g} to {high:g} s between them. First token after (median, p90):",
        "",
        " " * 16 + "".join(f"{head:>{width}}" for head, width in _HEADS),
    ]
    for row in report["courses"]:
        used = row["ahead_used_share"]
        after, plain = _seconds(row["eviction_seconds"]), _seconds(row["plain_seconds"])
        new, old = (_tokens(row[name]) for name in ("eviction_new_tokens", "eviction_old_tokens"))
        lines.append(
            f"{row['name']:<16}{row['num_evictions']:>10}{row['num_foreseen']:>10}{after:>22}{plain:>18}{new:>14}{old:>14}"
            f"{'-' if used is None else f'{used:.0%}':>7}"
        )
    return [
        *lines,
        "",
        "An eviction comes with a large result. new, old: tokens that the turn brings, and that it computes again, the",
        "medians and p90. used: of the tokens computed ahead; a plan that is still kept at the end counts as unused.",
    ]


def _seconds(spread: dict[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median']:.2f} s, {spread['p90']:.2f} s"


def _tokens(spread: dict[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median']:,.0f}, {spread['p90']:,.0f}"


def _counters(url: str) -> dict[str, float]:
    found = dict.fromkeys(_AHEAD, 0.0)
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        for name in _AHEAD:
            if line.startswith(f"acmserve:{name}_total"):
                found[name] += float(line.rpartition(" ")[2])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench ahead", description=__doc__.split("\n\n")[1])
    parser.add_argument("--model", choices=list(MAX_MODEL_LEN), default="smollm2", help="tiny: random weights")
    parser.add_argument("--tasks", type=int, metavar="N", default=6, help="tasks of about 11 turns (default 6)")
    parser.add_argument("--scale", type=float, metavar="X", default=1.0, help="length of the pauses (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write numbers, machine and versions")
    return parser


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
