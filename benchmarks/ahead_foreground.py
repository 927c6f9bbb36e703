"""`acmserve bench ahead --foreground`: what working ahead costs those who leave the engine no idle moment.

Four sessions at a time run the conversation without pauses, in rounds that take turns: `ahead: off`, `predict`. While
any request is alive nothing is computed ahead, so there should be no difference but noise, which the spread of the
rounds tells.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.agent_trace import Trace
from acmserve.bench.ahead_run import CWL, Course, check_course, run_course
from acmserve.context.tokens import Tokenizer

NUM_SESSIONS = 4
MODES = ("off", "predict")


@dataclass(slots=True)
class Rounds:
    """Of one mode: turns a second of each round, and the seconds to the first token of all turns."""

    turns_per_second: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def measure_foreground(
    url: str, trace: Trace, tokenizer: Tokenizer, num_rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the rounds; the first of each mode warms up and is not counted."""
    found = {mode: Rounds() for mode in MODES}
    failures: list[str] = []
    for number in range(num_rounds + 1):
        for mode in MODES if number % 2 else MODES[::-1]:
            say(f"round {number} of {num_rounds}, ahead: {mode}")
            acm = {"fidelity": "exact", "ahead": mode}
            made = [Course(f"{mode}, round {number}, session {k}", acm) for k in range(NUM_SESSIONS)]
            begun = time.monotonic()
            with ThreadPoolExecutor(NUM_SESSIONS) as pool:
                for one in [pool.submit(run_course, url, trace, c, CWL, tokenizer, 0.0, _silent) for c in made]:
                    one.result()
            seconds = time.monotonic() - begun
            failures += [failure for course in made for failure in check_course(course, trace, CWL)]
            if number:
                found[mode].turns_per_second.append(sum(len(course.turns) for course in made) / seconds)
                found[mode].seconds += [turn.seconds for course in made for turn in course.turns]
    return {
        "failures": failures,
        "num_sessions": NUM_SESSIONS,
        "num_rounds": num_rounds,
        "trace": {"num_turns": trace.num_turns, "digest": trace.digest},
        "modes": {} if failures else {mode: _row(rounds) for mode, rounds in found.items()},
    }


def _row(rounds: Rounds) -> dict[str, Any]:
    ordered = sorted(rounds.seconds)
    return {
        "turns_per_second": [round(value, 4) for value in rounds.turns_per_second],
        "median_turns_per_second": round(statistics.median(rounds.turns_per_second), 4),
        "median_seconds": round(statistics.median(ordered), 4),
        "p99_seconds": round(ordered[math.ceil(0.99 * len(ordered)) - 1], 4),
        "num_turns": len(ordered),
    }


def foreground_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons where something failed."""
    if report["failures"]:
        return ["NOTHING IS REPORTED:", *(f"  {failure}" for failure in report["failures"][:20])]
    lines = [f"{report['num_sessions']} sessions without pauses, {report['num_rounds']} rounds in turn:", ""]
    lines.append(f"{'ahead':<10}{'turns/s, median (least to most)':>36}{'first token, median':>22}{'p99':>10}")
    for mode, row in report["modes"].items():
        rates = row["turns_per_second"]
        rate = f"{row['median_turns_per_second']:.2f} ({min(rates):.2f} to {max(rates):.2f})"
        lines.append(f"{mode:<10}{rate:>36}{row['median_seconds']:>20.2f} s{row['p99_seconds']:>8.2f} s")
    off, on = (report["modes"][mode] for mode in MODES)
    rate, p99 = (on[key] / off[key] - 1 for key in ("median_turns_per_second", "p99_seconds"))
    return [*lines, "", f"predict beside off: {rate:+.1%} turns a second, {p99:+.1%} p99 to the first token."]


def _silent(line: str) -> None:
    """Four sessions at a time would talk over each other."""
