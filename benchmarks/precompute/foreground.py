"""`acmserve bench ahead --foreground`: what working ahead costs those who leave the engine no idle moment.

Four sessions run the conversation without pauses, in rounds that take turns: `ahead: off`, `predict`. While any request
is alive nothing is computed ahead, so there should be no difference but noise.

    wave k     session 1 [request k ....]            all four have their answers: wave k + 1
               session 2 [request k ........]
               session 3 [request k .........]
               session 4 [request k .......]

The sessions go in step, so that the engine gets the same four requests in every round and mode. Left to themselves they
meet in other batches each time, and rounds of one mode lie 30 % apart; and in step all four are silent at once, which
is when work ahead could come between them. A wave and a turn count with their median over the rounds; which of the four
comes first in a wave is chance, so of each turn it is the first, the second ... of them that is compared. Single rounds
still differ by the machine's noise: what is said of the two modes is the mean ratio of their waves, with its interval.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError
from typing import Any

from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.harness.options import as_gate, red_gate
from acmserve.bench.harness.server_process import HttpProcess
from acmserve.bench.precompute.run import CWL, Course, check_course, read_counters, run_course
from acmserve.bench.tasks.summary import difference_interval
from acmserve.context.transcript.tokenizer import Tokenizer

NUM_SESSIONS = 4
MODES = ("off", "predict")
# What the sessions of the round before may still have computed ahead is through then.
_SETTLE_SECONDS = 5.0
_SEED = 23


@dataclass(slots=True)
class Round:
    """`waves` and `firsts` are seconds: of each wave, and to the first token, turn by turn and ascending in each.

    `cpu_seconds` are the server's, `num_precomputed` the tokens that it computed ahead.
    """

    waves: list[float]
    firsts: list[float]
    cpu_seconds: float
    num_precomputed: float


@dataclass(slots=True)
class _Waves:
    """Lets the sessions go together, and notes when. After the first that ends nobody waits any more."""

    starts: list[float] = field(default_factory=list)
    barrier: Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = Barrier(NUM_SESSIONS, action=lambda: self.starts.append(time.monotonic()))


def measure_foreground(
    server: HttpProcess, trace: Trace, tokenizer: Tokenizer, num_rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the rounds; the first of each mode warms up and is not counted."""
    url = server.wait_ready()
    found: dict[str, list[Round]] = {mode: [] for mode in MODES}
    failures: list[str] = []
    for number in range(num_rounds + 1):
        for mode in MODES if number % 2 else MODES[::-1]:
            say(f"round {number} of {num_rounds}, ahead: {mode}")
            acm = {"fidelity": "exact", "precompute": mode}
            time.sleep(_SETTLE_SECONDS)
            made = [Course(f"{mode}, round {number}, session {k}", acm) for k in range(NUM_SESSIONS)]
            cpu_before, precomputed_before = server.cpu_seconds(), read_counters(url)["precomputed_tokens"]
            waves = _run(url, trace, made, tokenizer)
            failures += [failure for course in made for failure in check_course(course, trace, CWL)]
            if number:
                cpu_seconds = server.cpu_seconds() - cpu_before
                num_precomputed = read_counters(url)["precomputed_tokens"] - precomputed_before
                firsts = in_order([[turn.seconds for turn in course.turns] for course in made])
                found[mode].append(Round(waves, firsts, cpu_seconds, num_precomputed))
    return {
        "gate": as_gate(failures),
        "num_sessions": NUM_SESSIONS,
        "num_rounds": num_rounds,
        "trace": {"num_turns": trace.num_turns, "digest": trace.digest},
        "modes": {} if failures else {mode: as_row(rounds) for mode, rounds in found.items()},
        "wave_ratio": None if failures else wave_ratio(*found.values()),
    }


def _run(url: str, trace: Trace, made: list[Course], tokenizer: Tokenizer) -> list[float]:
    """The seconds of each wave of one round. A session that fails ends the round for all."""
    waves = _Waves()

    def run(course: Course) -> None:
        try:
            run_course(url, trace, course, CWL, tokenizer, waves.barrier.wait, _silent)
        except BrokenBarrierError:
            course.failures.append(f"{course.name}: another session has ended")
        finally:
            waves.barrier.abort()

    with ThreadPoolExecutor(NUM_SESSIONS) as pool:
        for one in [pool.submit(run, course) for course in made]:
            one.result()
    ends = [*waves.starts[1:], time.monotonic()]
    return [end - start for start, end in zip(waves.starts, ends, strict=True)]


def in_order(sessions: Sequence[Sequence[float]]) -> list[float]:
    """For each turn the seconds of all sessions, ascending: (sessions, turns) to turns x sessions."""
    return [seconds for turn in zip(*sessions, strict=True) for seconds in sorted(turn)]


def wave_ratio(off: Sequence[Round], on: Sequence[Round]) -> dict[str, Any]:
    """How long a wave takes with work ahead over without: the geometric mean, and its 95 % bootstrap interval."""
    pairs = zip(_median_waves(on), _median_waves(off), strict=True)
    logs = [math.log(one / other) for one, other in pairs]
    interval = difference_interval(logs, _SEED)
    edges = None if interval is None else [round(math.exp(edge), 4) for edge in interval]
    return {"mean": round(math.exp(statistics.fmean(logs)), 4), "interval": edges}


def _median_waves(rounds: Sequence[Round]) -> list[float]:
    return [statistics.median(times) for times in zip(*(one.waves for one in rounds), strict=True)]


def as_row(rounds: Sequence[Round]) -> dict[str, Any]:
    """What the rounds of one mode come to, JSON-ready."""
    waves = _median_waves(rounds)
    firsts = sorted(statistics.median(times) for times in zip(*(one.firsts for one in rounds), strict=True))
    return {
        "turns_per_second": round(len(firsts) / sum(waves), 4),
        "turns_per_second_by_round": [round(len(firsts) / sum(one.waves), 4) for one in rounds],
        "median_seconds": round(statistics.median(firsts), 4),
        "p99_seconds": round(_p99(firsts), 4),
        "p99_seconds_by_round": [round(_p99(sorted(one.firsts)), 4) for one in rounds],
        "cpu_seconds_per_turn": round(statistics.median(one.cpu_seconds for one in rounds) / len(firsts), 4),
        "cpu_seconds_by_round": [round(one.cpu_seconds, 2) for one in rounds],
        "precomputed_tokens": sum(one.num_precomputed for one in rounds),
        "num_turns": len(firsts),
    }


def _p99(ascending: Sequence[float]) -> float:
    return ascending[math.ceil(0.99 * len(ascending)) - 1]


def foreground_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons where something failed."""
    if red := red_gate(report):
        return red
    heads = f"{'ahead':<10}{'turns/s (rounds: least to most)':>34}{'first token, median':>22}{'p99':>10}"
    lines = [f"{report['num_sessions']} sessions without pauses, in step, {report['num_rounds']} rounds in turn:", ""]
    lines.append(heads + f"{'CPU a turn':>13}{'computed ahead':>17}")
    for mode, row in report["modes"].items():
        rates = row["turns_per_second_by_round"]
        rate = f"{row['turns_per_second']:.2f} ({min(rates):.2f} to {max(rates):.2f})"
        times = f"{row['median_seconds']:>20.3f} s{row['p99_seconds']:>8.2f} s{row['cpu_seconds_per_turn']:>11.3f} s"
        lines.append(f"{mode:<10}{rate:>34}{times}{row['precomputed_tokens']:>10,.0f} tokens")
    off, on = (report["modes"][mode] for mode in MODES)
    names = ("turns_per_second", "p99_seconds", "cpu_seconds_per_turn")
    rate, p99, cpu = (f"{on[name] / off[name] - 1:+.1%}" for name in names)
    ratio = report["wave_ratio"]
    edges = "" if ratio["interval"] is None else " (95 %: {:.3f} to {:.3f})".format(*ratio["interval"])
    wave = f"A wave under predict takes {ratio['mean']:.3f} of the time of one under off{edges}."
    return [*lines, "", f"predict: {rate} turns a second, {p99} p99 to the first token, {cpu} CPU a turn.", wave]


def _silent(line: str) -> None:
    """Four sessions at a time would talk over each other."""
