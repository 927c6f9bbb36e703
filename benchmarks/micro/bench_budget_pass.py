"""What a budget costs the server beside the model: `acmserve bench micro budget-pass`.

    turn at 100,000 tokens     adopt (the client's history is recognised) | follow (the meter) | exceeds | counted
    pass at 10,000 episodes    plan_eviction, a batch | carried out: what is gone is forgotten

Measured are the calls that the server makes for every step of a model, on the processor alone. No engine is needed.
The meter and the eviction pass have a limit. The others are told because a turn pays them too. A batch takes 20,000
tokens.

The gate of a turn: the meter that followed turn by turn has counted what one built anew counts. The gate of a pass: the
plan meets its target, is the same again, and leaves what its rendering weighs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from acmserve.bench.micro.words import WordCounter
from acmserve.context.accounting.known_prompt import Counted
from acmserve.context.episodes.delimiter import Scope, run_delimiter
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.budget import Budget
from acmserve.context.session.history import adopt
from acmserve.context.session.low_watermark import Measured
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message

NUM_TOKENS = 100_000
NUM_EPISODES = 10_000
NUM_BATCH_TOKENS = 20_000
METER_LIMIT_MS, PASS_LIMIT_MS = 2.0, 20.0
NUM_ROUNDS = 25
MEASURED = Measured(growth=300.0, prefill_rate=5_000.0, move_rate=200_000.0)
_GONE_TOKENS_EACH = 85


@dataclass(slots=True)
class PassAgent:
    """Writes an annotated conversation: explorations and acts on them, in turn, with results of `num_words` words."""

    num_words: int
    messages: list[Message] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)
    num_calls: int = 0

    def step(self, tool: str, arguments: dict[str, Any], result: str | None = None) -> None:
        """One call and its result. That of `delimiter` is the tool's own."""
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
    meter: ContextMeter = field(default_factory=lambda: ContextMeter(WordCounter()))
    state: SessionState = field(default_factory=SessionState)
    num_turns: int = 0

    def fill(self) -> None:
        """Bring the conversation to its size."""
        while self.meter.num_tokens < NUM_TOKENS:
            for _ in range(10):
                self.agent.turn(self.num_turns)
                self.num_turns += 1
            self.state = self.meter.follow(adopt(self.state, self.agent.messages).state)

    def resend(self) -> tuple[SessionState, list[Message]]:
        """The client adds a turn: the state that the server has, and all messages."""
        self.state = self.meter.follow(adopt(self.state, self.agent.messages).state)
        counted = self.meter.counted()
        self.meter.calibrate(counted, counted.num_tokens)
        self.agent.turn(self.num_turns)
        self.num_turns += 1
        return self.state, [dict(message) for message in self.agent.messages]

    def count(self, adopted: SessionState) -> Counted:
        """What the server asks in front of a step that needs no eviction."""
        self.state = self.meter.follow(adopted)
        self.meter.exceeds(Budget(2 * NUM_TOKENS))
        return self.meter.counted()

    def is_right(self) -> bool:
        """The gate: what was counted turn by turn is what is counted at once."""
        anew = ContextMeter(WordCounter())
        anew.follow(self.state)
        self.meter.check_integrity()
        return anew.num_tokens == self.meter.num_tokens >= NUM_TOKENS


@dataclass(slots=True)
class Evictions:
    """A session of `NUM_EPISODES` episodes of which all are shown, or the last. Each repetition evicts a batch of it.

    Its prompts were served as they were counted, so nothing is set aside for errors.
    """

    name: str
    state: SessionState
    meter: ContextMeter = field(default_factory=lambda: ContextMeter(WordCounter()))

    def follow(self) -> ContextMeter:
        """The meter, with all there that the batch will take."""
        self.state = self.meter.follow(self.state)
        counted = self.meter.counted()
        self.meter.calibrate(counted, counted.num_tokens)
        return self.meter

    def plan(self) -> EvictionPlan:
        """The batch: exceeded by a token, with a watermark that many tokens lower."""
        num_tokens = self.meter.num_tokens
        return self.meter.plan(Budget(num_tokens - 1, num_tokens - NUM_BATCH_TOKENS), MEASURED)

    def is_right(self) -> bool:
        """The gate: the target is met, the plan is the same again, and what is rendered weighs what it says."""
        meter = self.follow()
        plan, again = self.plan(), self.plan()
        state = meter.carry_out(plan, self.state)
        meter.check_integrity()
        rendered = ContextMeter(WordCounter())
        rendered.follow(adopt(SessionState(), render(state)).state)
        is_met = plan.num_after <= plan.target and plan.unmet is None and plan.changes
        return is_met and rendered.num_tokens == plan.num_after - meter.token_counts.base_tokens and again == plan


def make_evictions() -> tuple[Evictions, Evictions]:
    """Ten thousand episodes, nothing evicted, and the same when most of them were, as in a session that ran so long."""
    agent = begin(20)
    for number in range(NUM_EPISODES // 2):
        agent.turn(number)
    new = Evictions("none gone yet", adopt(SessionState(), agent.messages).state)
    meter = ContextMeter(WordCounter())
    state = meter.follow(new.state)
    counted = meter.counted()
    meter.calibrate(counted, counted.num_tokens)
    num_left = meter.num_tokens - _GONE_TOKENS_EACH * NUM_EPISODES
    state = meter.carry_out(meter.plan(Budget(num_left, num_left), MEASURED), state)
    return new, Evictions(f"{meter.graph.num_forgotten:,} gone", state)


@pytest.fixture(scope="module")
def turns() -> Turns:
    """A session that is as large as it is to be."""
    made = Turns()
    made.fill()
    assert made.is_right()
    return made


@pytest.fixture(scope="module")
def evictions() -> tuple[Evictions, Evictions]:
    """Both sessions."""
    made = make_evictions()
    assert all(session.is_right() for session in made)
    return made


def bench_taking_in_the_resent_history(benchmark: Any, turns: Turns) -> None:
    """The client's whole history, with a turn more."""
    benchmark.extra_info |= {"name": "taking in the resent history"}
    benchmark.pedantic(adopt, setup=lambda: (turns.resend(), {}), rounds=NUM_ROUNDS)


def bench_meter(benchmark: Any, turns: Turns) -> None:
    """What a turn more weighs."""
    benchmark.extra_info |= {"name": "meter, a turn", "limit_ms": METER_LIMIT_MS}
    benchmark.pedantic(turns.count, setup=lambda: ((adopt(*turns.resend()).state,), {}), rounds=NUM_ROUNDS)
    assert turns.is_right()


@pytest.mark.parametrize("number", [0, 1])
def bench_eviction_pass(benchmark: Any, evictions: tuple[Evictions, Evictions], number: int) -> None:
    """Plan a batch."""
    session = evictions[number]
    benchmark.extra_info |= {"name": f"eviction pass, {session.name}", "limit_ms": PASS_LIMIT_MS}
    session.follow()
    benchmark.pedantic(session.plan, rounds=NUM_ROUNDS)
    assert session.is_right()


@pytest.mark.parametrize("number", [0, 1])
def bench_forgetting(benchmark: Any, evictions: tuple[Evictions, Evictions], number: int) -> None:
    """Carry the batch out."""
    session = evictions[number]

    def planned() -> tuple[Any, dict[str, Any]]:
        session.follow()
        return (session.plan(), session.state), {}

    benchmark.extra_info |= {"name": f"forgetting, {session.name}"}
    benchmark.pedantic(session.meter.carry_out, setup=planned, rounds=5)
