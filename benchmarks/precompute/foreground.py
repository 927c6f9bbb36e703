"""`bench precompute --foreground`: what precompute costs those who leave the engine no idle moment.

Four sessions run the conversation without pauses, in rounds that take turns: precompute `off`, `predict`. While any
request is alive nothing is precomputed, so there should be no difference but noise.

    wave k     session 1 [request k ....]            all four have their answers: wave k + 1
               session 2 [request k ........]
               session 3 [request k .........]
               session 4 [request k .......]

The sessions go in step, so that the engine gets the same four requests in every round and mode. Left to themselves they
meet in other batches each time, and rounds of one mode lie 30 % apart. The p99 is that of all first tokens of a mode.

Decision: the two modes are compared round by round, by the geometric mean of their times. Waves of one round drift
together, so an interval over waves would be too narrow. It is Student's, over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError
from typing import Any

from acmserve.bench.agent.conversation import ConversationRun, check_run, run_conversation
from acmserve.bench.agent.estimates import nearest_rank, student_ratio_interval
from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.harness.markdown_text import ratio
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.run_log import counted
from acmserve.bench.harness.server_process import HttpProcess
from acmserve.bench.precompute.runs import CWL, make_run, read_counters
from acmserve.context.transcript.tokenizer import Tokenizer

NUM_SESSIONS = 4
MODES = ("off", "predict")
# What the sessions of the round before may still have precomputed is through then.
_SETTLE_SECONDS = 5.0


@dataclass(slots=True)
class ForegroundRound:
    """`waves` and `firsts` are seconds: of each wave, and to the first token of every turn of all sessions.

    `cpu_seconds` are the server's, `num_precomputed` the tokens that it precomputed.
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
    url: str, server: HttpProcess, trace: Trace, tokenizer: Tokenizer, num_rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the rounds. The first of each mode warms up and is not counted."""
    found: dict[str, list[ForegroundRound]] = {mode: [] for mode in MODES}
    failures: list[str] = []
    for number in range(num_rounds + 1):
        for mode in MODES if number % 2 else MODES[::-1]:
            num_done = sum(map(len, found.values()))
            line = counted(num_done + 1, len(MODES) * num_rounds, f"precompute: {mode}")
            say(line if number else f"warm-up, not counted, precompute: {mode}")
            time.sleep(_SETTLE_SECONDS)
            names = (f"{mode}, round {number}, session {k}" for k in range(NUM_SESSIONS))
            runs = [make_run(name, CWL, "exact", mode) for name in names]
            cpu_before, precomputed_before = server.cpu_seconds(), read_counters(url)["precomputed_tokens"]
            waves = _run_together(url, trace, runs, tokenizer)
            failures += [failure for run in runs for failure in check_run(run, trace)]
            if number:
                cpu_seconds = server.cpu_seconds() - cpu_before
                num_precomputed = read_counters(url)["precomputed_tokens"] - precomputed_before
                firsts = [turn.seconds for run in runs for turn in run.turns]
                found[mode].append(ForegroundRound(waves, firsts, cpu_seconds, num_precomputed))
    modes = {} if failures else {mode: as_row(rounds) for mode, rounds in found.items()}
    return {
        "gate": as_gate(failures),
        "num_sessions": NUM_SESSIONS,
        "num_rounds": num_rounds,
        "trace": {"num_turns": trace.num_turns, "digest": trace.digest},
        "modes": modes,
        "wave_ratio": None if failures else wave_ratio(modes),
    }


def _run_together(url: str, trace: Trace, runs: Sequence[ConversationRun], tokenizer: Tokenizer) -> list[float]:
    """The seconds of each wave of one round. A session that fails ends the round for all."""
    waves = _Waves()

    def run_one(run: ConversationRun) -> None:
        try:
            run_conversation(url, trace, run, tokenizer, lambda line: None, pause=waves.barrier.wait)
        except BrokenBarrierError:
            run.failures.append(f"{run.name}: another session has ended")
        finally:
            waves.barrier.abort()

    with ThreadPoolExecutor(NUM_SESSIONS) as pool:
        list(pool.map(run_one, runs))
    ends = [*waves.starts[1:], time.monotonic()]
    return [end - start for start, end in zip(waves.starts, ends, strict=True)]


def wave_ratio(modes: Mapping[str, Any]) -> dict[str, Any]:
    """How long a round of waves takes with precompute over without: the geometric mean, and its 95 % interval.

    Of rows that `as_row` made. One round alone has no interval.
    """
    off, on = (modes[mode]["turns_per_second_by_round"] for mode in MODES)
    ratios = [slow / fast for slow, fast in zip(off, on, strict=True)]
    ends = [round(end, 4) for end in student_ratio_interval(ratios)] if len(ratios) > 1 else None
    return {"mean": round(statistics.geometric_mean(ratios), 4), "interval": ends}


def _median_waves(rounds: Sequence[ForegroundRound]) -> list[float]:
    return [statistics.median(times) for times in zip(*(one.waves for one in rounds), strict=True)]


def as_row(rounds: Sequence[ForegroundRound]) -> dict[str, Any]:
    """What the rounds of one mode come to, JSON-ready."""
    num_turns = len(rounds[0].firsts)
    firsts = sorted(seconds for one in rounds for seconds in one.firsts)
    return {
        "turns_per_second": round(num_turns / sum(_median_waves(rounds)), 4),
        "turns_per_second_by_round": [round(num_turns / sum(one.waves), 4) for one in rounds],
        "median_seconds": round(statistics.median(firsts), 4),
        "p99_seconds": round(nearest_rank(firsts, 0.99), 4),
        "p99_seconds_by_round": [round(nearest_rank(sorted(one.firsts), 0.99), 4) for one in rounds],
        "cpu_seconds_per_turn": round(statistics.median(one.cpu_seconds for one in rounds) / num_turns, 4),
        "cpu_seconds_by_round": [round(one.cpu_seconds, 2) for one in rounds],
        "precomputed_tokens": sum(one.num_precomputed for one in rounds),
        "num_turns": num_turns,
    }


def _modes(report: Report) -> Iterator[list[str]]:
    for name, mode in report["modes"].items():
        rounds = mode["p99_seconds_by_round"]
        spread = f"{min(rounds):.2f} to {max(rounds):.2f} s"
        yield [f"`{name}`", ratio(mode["turns_per_second"]), spread, f"{mode['cpu_seconds_per_turn']:.3f} s"]


MODES_TABLE = ResultTable(
    ("mode", "turns a second", "p99 of the first token, by round", "CPU time a turn"),
    _modes,
    "Four sessions in step that leave no pause (`acmserve bench precompute --foreground 5 --model tiny`). "
    "Nothing is precomputed there.",
)
