"""What a budget costs the server beside the model: `acmserve bench budget-pass`.

    turn at 100,000 tokens     adopt (the client's history is recognised) | follow (the account) | exceeds | counted
    pass at 10,000 episodes    plan_eviction, a batch | carried out: what is gone is forgotten

Measured are the calls that the server makes for every step of a model, on the processor alone; no engine is needed. The
repetitions of all rows take turns, so that what else the machine does falls on each of them. `account, a turn` and
`eviction pass` have a limit; the others are told because a turn pays them too. A batch takes 20,000 tokens.

Gate in front of the numbers: the account that followed turn by turn has counted what one built anew counts, the plan
meets its target, is the same again, and leaves what its rendering weighs.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.context.episodes.delimiter import Scope, run_delimiter
from acmserve.context.eviction.context_meter import ContextMeter, Counted
from acmserve.context.eviction.low_watermark import Measured
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.budget import Budget
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message

NUM_TOKENS = 100_000
NUM_EPISODES = 10_000
NUM_BATCH_TOKENS = 20_000
LIMITS_MS = {"account, a turn": 2.0, "eviction pass": 20.0}
MEASURED = Measured(growth=300.0, prefill_rate=5_000.0, move_rate=200_000.0)
_GONE_TOKENS_EACH = 85
_Result = TypeVar("_Result")
Note = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class PassRow:
    """Milliseconds of one part."""

    name: str
    limit_ms: float | None
    median_ms: float
    least_ms: float
    worst_ms: float


class PassWords:
    """Counts words: the tokenizer's own time depends on the model, and is paid for new text only."""

    def starts(self, text: str) -> Sequence[int]:
        return [match.start() for match in re.finditer(r"\S+", text)]


@dataclass(slots=True)
class PassAgent:
    """Writes an annotated conversation: explorations and acts on them, in turn, with results of `num_words` words."""

    num_words: int
    messages: list[Message] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)
    num_calls: int = 0

    def step(self, tool: str, arguments: dict[str, Any], result: str | None = None) -> None:
        """One call and its result; that of `delimiter` is the tool's own."""
        self.num_calls += 1
        if result is None:
            done = run_delimiter(self.scope, arguments)
            self.scope, result = done.scope, done.result
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{self.num_calls}", "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def episode(self, number: int) -> None:
        """Every second one is an act on the one before."""
        start: dict[str, Any] = {"action": "start", "name": f"e{number}", "type": "expl"}
        end = {"action": "end", "description": f"it is in line {number}"}
        if number % 2:
            start |= {"type": "act", "dependencies": [f"e{number - 1}"]}
            end = {"action": "end"}
        self.step("delimiter", start)
        self.step("edit" if number % 2 else "grep", {"path": f"file-{number}"}, f"word{number} " * self.num_words)
        self.step("delimiter", end)

    def turn(self, number: int) -> None:
        """A question, and two episodes of work on it."""
        self.messages.append({"role": "user", "content": f"Now the part {number}."})
        self.episode(2 * number)
        self.episode(2 * number + 1)


def begin(num_words: int) -> PassAgent:
    """A conversation that has a system message and nothing else."""
    return PassAgent(num_words, [{"role": "system", "content": "You work on many files."}])


@dataclass(slots=True)
class Turns:
    """A session of `NUM_TOKENS` tokens to which a client adds a turn, and resends everything."""

    agent: PassAgent = field(default_factory=lambda: begin(150))
    meter: ContextMeter = field(default_factory=lambda: ContextMeter(PassWords()))
    state: SessionState = field(default_factory=SessionState)
    num_turns: int = 0

    def fill(self) -> None:
        """Bring the conversation to its size."""
        while self.meter.num_tokens < NUM_TOKENS:
            for _ in range(10):
                self.agent.turn(self.num_turns)
                self.num_turns += 1
            self.state = self.meter.follow(adopt(self.state, self.agent.messages).state)

    def turn(self, note: Note) -> None:
        """One more; `note` takes the milliseconds of its parts."""
        self.agent.turn(self.num_turns)
        self.num_turns += 1
        resent = [dict(message) for message in self.agent.messages]
        adopted = timed(lambda: adopt(self.state, resent).state, "taking in the resent history", note)
        self.state, counted = timed(lambda: self._meter(adopted), "account, a turn", note)
        self.meter.calibrate(counted, counted.num_tokens)

    def _meter(self, adopted: SessionState) -> tuple[SessionState, Counted]:
        """What the server asks in front of a step that needs no eviction."""
        state = self.meter.follow(adopted)
        self.meter.exceeds(Budget(2 * NUM_TOKENS))
        return state, self.meter.counted()

    def is_right(self) -> bool:
        """The gate: what was counted turn by turn is what is counted at once."""
        anew = ContextMeter(PassWords())
        anew.follow(self.state)
        self.meter.check_integrity()
        return anew.num_tokens == self.meter.num_tokens >= NUM_TOKENS


@dataclass(slots=True)
class Evictions:
    """A session of `NUM_EPISODES` episodes of which all are shown, or the last; each repetition evicts a batch of it.

    Its prompts were served as they were counted, so nothing is set aside for errors.
    """

    name: str
    state: SessionState
    meter: ContextMeter = field(default_factory=lambda: ContextMeter(PassWords()))

    def follow(self) -> ContextMeter:
        """The account, with all there that the batch will take."""
        self.state = self.meter.follow(self.state)
        counted = self.meter.counted()
        self.meter.calibrate(counted, counted.num_tokens)
        return self.meter

    def plan(self) -> EvictionPlan:
        """The batch: exceeded by a token, with a watermark that many tokens lower."""
        num_tokens = self.meter.num_tokens
        return self.meter.plan(Budget(num_tokens - 1, num_tokens - NUM_BATCH_TOKENS), MEASURED)

    def turn(self, note: Note) -> None:
        """Plan a batch, and carry it out."""
        meter = self.follow()
        plan = timed(self.plan, f"eviction pass, {self.name}", note)
        timed(lambda: meter.carry_out(plan, self.state), f"forgetting, {self.name}", note)

    def is_right(self) -> bool:
        """The gate: the target is met, the plan is the same again, and what is rendered weighs what it says."""
        meter = self.follow()
        plan, again = self.plan(), self.plan()
        state = meter.carry_out(plan, self.state)
        meter.check_integrity()
        rendered = ContextMeter(PassWords())
        rendered.follow(adopt(SessionState(), render(state)).state)
        is_met = plan.num_after <= plan.target and plan.unmet is None and plan.changes
        return is_met and rendered.num_tokens == plan.num_after - meter.token_counts.base_tokens and again == plan


def make_evictions() -> list[Evictions]:
    """Ten thousand episodes, nothing evicted; and the same when most of them were, as in a session that ran so long."""
    agent = begin(20)
    for number in range(NUM_EPISODES // 2):
        agent.turn(number)
    new = Evictions("none gone yet", adopt(SessionState(), agent.messages).state)
    meter = ContextMeter(PassWords())
    state = meter.follow(new.state)
    counted = meter.counted()
    meter.calibrate(counted, counted.num_tokens)
    num_left = meter.num_tokens - _GONE_TOKENS_EACH * NUM_EPISODES
    state = meter.carry_out(meter.plan(Budget(num_left, num_left), MEASURED), state)
    return [new, Evictions(f"{meter.graph.num_forgotten:,} gone", state)]


def timed(call: Callable[[], _Result], name: str, note: Note) -> _Result:
    """Run it; tell the milliseconds."""
    started = time.perf_counter()
    result = call()
    note(name, 1e3 * (time.perf_counter() - started))
    return result


def measure(turns: Turns, evictions: Sequence[Evictions], repetitions: int) -> dict[str, list[float]] | None:
    """Milliseconds by row, the repetitions in turn; None where the gate is red."""
    turns.fill()
    sessions: tuple[Turns | Evictions, ...] = (turns, *evictions)
    if not all(session.is_right() for session in sessions):
        return None
    times: dict[str, list[float]] = {}
    for _ in range(repetitions):
        gc.collect()
        gc.disable()
        for session in sessions:
            session.turn(lambda name, milliseconds: times.setdefault(name, []).append(milliseconds))
        gc.enable()
    return times if all(session.is_right() for session in sessions) else None


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, write the JSON file; 1 where the gate was red or a median over its limit."""
    parser = argparse.ArgumentParser(
        prog="acmserve bench budget-pass",
        description=f"What a budget costs a step beside the model: its account at {NUM_TOKENS:,} tokens, and eviction "
        f"passes at {NUM_EPISODES:,} episodes.",
    )
    parser.add_argument("--repetitions", type=int, default=25, help="timed repetitions, interleaved (default: 25)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rows, machine and versions to FILE")
    options = parser.parse_args(argv)
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    machine = describe_machine()
    print(one_line(machine))
    turns, evictions = Turns(), make_evictions()
    times = measure(turns, evictions, options.repetitions)
    if times is None:
        print("RED: an account is wrong or a plan does not meet its target; no time is reported")
        return 1
    rows = [row_of(name, times[name]) for name in times]
    print(f"{'':36}{'median':>12}{'least':>12}{'worst':>12}{'limit':>10}")
    for row in rows:
        limit = "" if row.limit_ms is None else f"{row.limit_ms:g} ms"
        print(f"{row.name:36}{row.median_ms:9.2f} ms{row.least_ms:9.2f} ms{row.worst_ms:9.2f} ms{limit:>10}")
    slow = [row.name for row in rows if row.limit_ms is not None and row.median_ms > row.limit_ms]
    print(f"over the limit: {', '.join(slow)}" if slow else "all limits kept")
    if options.json is not None:
        report: dict[str, Any] = {"machine": machine, "correct": True, "repetitions": options.repetitions}
        report |= {"num_tokens": turns.meter.num_tokens, "num_messages": len(turns.state.entries)}
        report |= {"num_episodes": NUM_EPISODES, "batch_tokens": NUM_BATCH_TOKENS}
        report |= {"rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if slow else 0


def row_of(name: str, milliseconds: Sequence[float]) -> PassRow:
    """A row of the table."""
    median, least, worst = statistics.median(milliseconds), min(milliseconds), max(milliseconds)
    return PassRow(
        name,
        LIMITS_MS.get(name, LIMITS_MS.get(name.partition(",")[0])),
        round(median, 3),
        round(least, 3),
        round(worst, 3),
    )


BENCHMARK = Benchmark(
    "budget-pass",
    "what a budget costs a step beside the model: its meter, and an eviction pass",
    main,
)


if __name__ == "__main__":
    sys.exit(main())
