"""Forty-five short tasks in one uninterrupted conversation on the real engine, at a budget.

The server finds the watermark of the budget by itself. The context stays under its budget to the end, and what is
evicted costs no memory.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field

import pytest

from tests.support import http
from tests.support.server.scripts import tool_call
from tests.support.server.working_agent import Agent, delimit

NUM_TASKS = 45
MAX_TOKENS = 3500
BUDGET = {"max_tokens": MAX_TOKENS, "low_watermark": "auto", "policy": "cwl"}
KINDS = ("kept_tokens", "moved_tokens", "computed_tokens")
MIB = 2**20


@dataclass
class LongSession:
    """The agent, and behind every task the bytes resident in the server's process (not the engine's) and of the
    transcript."""

    agent: Agent
    resident: list[int] = field(default_factory=list)
    transcript: list[int] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    def work(self) -> None:
        """One request a task: the step ends the last episode, starts the next and calls a tool. Every fourth acts."""
        self.counted = {kind: self.metric(f"acmserve:{kind}_total") for kind in KINDS}
        for number in range(NUM_TASKS):
            self.agent.messages.append({"role": "user", "content": f"Task {number}: look after mill {number}."})
            calls = [delimit(action="end", **({} if is_act(number - 1) else {"description": f"line {number}"}))]
            if is_act(number):
                calls.append(delimit(action="start", name=f"t{number}", type="act", dependencies=[f"t{number - 1}"]))
            else:
                calls.append(delimit(action="start", name=f"t{number}", type="expl"))
            self.agent.turn("\n".join([*calls[number == 0 :], tool_call("grep")]))
            self.resident.append(self.metric("process_resident_memory_bytes"))
            self.transcript.append(len(json.dumps(self.agent.messages).encode()))

    def newly_counted(self) -> dict[str, int]:
        """By how much the server's counters are higher than before the first task."""
        return {kind: self.metric(f"acmserve:{kind}_total") - self.counted[kind] for kind in KINDS}

    def metric(self, name: str) -> int:
        """What the server's metrics say, summed over their labels."""
        told = http.get(f"{self.agent.server}/metrics").text
        return sum(int(float(value)) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", told, re.MULTILINE))


def is_act(number: int) -> bool:
    return number % 4 == 3


@pytest.fixture(scope="module")
def session(scripted_server: str) -> LongSession:
    session = LongSession(Agent(scripted_server, BUDGET))
    session.work()
    return session


def test_the_context_stays_under_its_budget_to_the_end(session: LongSession) -> None:
    prompts = [step["receipt"]["prompt_tokens"] for step in session.agent.steps]
    assert session.agent.num_turns == len(prompts) == NUM_TASKS
    assert max(prompts) <= MAX_TOKENS
    assert all(step["budget"]["unmet"] is None for step in session.agent.steps)
    num_evicted = sum(step["budget"]["evicted_tokens"] for step in session.agent.steps)
    assert num_evicted > 3 * MAX_TOKENS


def test_receipts_sum_to_the_total(session: LongSession) -> None:
    """Each to its prompt, and all of them to what the server has counted meanwhile."""
    receipts = [step["receipt"] for step in session.agent.steps]
    assert all(sum(receipt[kind] for kind in KINDS) == receipt["prompt_tokens"] for receipt in receipts)
    total = {kind: sum(receipt[kind] for receipt in receipts) for kind in KINDS}
    deadline = time.monotonic() + 300
    while (counted := session.newly_counted()) != total and time.monotonic() < deadline:
        time.sleep(0.1)
    assert counted == total
    num_new = receipts[0]["prompt_tokens"] + sum(session.agent.num_new(index) for index in range(1, NUM_TASKS))
    assert total["computed_tokens"] <= 1.2 * num_new


def test_auto_evicts_in_batches(session: LongSession) -> None:
    """From the rates that were measured: moves are cheap, so most is kept, and yet turns pass between two evictions."""
    evictions = session.agent.evictions
    left = [session.agent.steps[index]["budget"]["tokens"] for index in evictions]
    assert len(evictions) >= 5
    assert NUM_TASKS / len(evictions) >= 2
    assert MAX_TOKENS / 8 <= min(left) <= max(left) < MAX_TOKENS
    assert session.agent.get("budget")["budget"]["low_watermark"] == "auto"


def test_evicted_episodes_cost_the_server_no_memory(session: LongSession) -> None:
    """In the second half its process grows by the transcript (its text, its counts) and what an allocator rounds up."""
    half = NUM_TASKS // 2
    grown = session.resident[-1] - session.resident[half]
    written = session.transcript[-1] - session.transcript[half]
    listed = session.agent.get("episodes")["data"]
    assert sum(episode["state"] == "evicted" for episode in listed) > NUM_TASKS // 2
    assert grown <= 8 * written + 8 * MIB
