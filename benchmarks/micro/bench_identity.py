"""What it costs to find the session of a request by its content: `acmserve bench micro identity`.

    appended    the client resends 32,000 tokens and a step more      found by the hash of the whole history
    changed     the same, with another clock in the first message     found by the end of the history, and compared

Measured is what the server does for a request without an id: read it, find its session, place it there. The time is
that of the processor, so that a busy machine does not count. A limit of one millisecond belongs to it.

The gate: every request is given to the session that it goes on with, and only new calls are written in one spelling.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from acmserve.bench.micro.bench_budget_pass import PassAgent, begin
from acmserve.bench.micro.words import WordCounter
from acmserve.server.identity.families import Families
from acmserve.server.identity.prompt import read_prompt
from acmserve.server.identity.thread_hints import ThreadHints

NUM_TOKENS = 32_000
NUM_WORDS = 200
LIMIT_MS = 1.0
NUM_ROUNDS = 40
SESSION = "acm-first"


@dataclass(slots=True)
class ResendingClient:
    """A client without an id, whose history has `NUM_TOKENS` tokens. With `changes` its first message has a clock."""

    changes: bool
    agent: PassAgent = field(default_factory=lambda: begin(NUM_WORDS))
    families: Families = field(default_factory=Families)
    num_steps: int = 0
    num_spelled: int = 0
    folder: str = field(default_factory=lambda: secrets.token_hex(4))

    def fill(self) -> None:
        """Bring the history to its size, and have it served once."""
        self.agent.messages.append({"role": "user", "content": "Find out what the files say."})
        count, num_tokens = WordCounter().starts, 0
        while num_tokens < NUM_TOKENS:
            self.step()
            num_tokens += sum(len(count(json.dumps(message))) for message in self.agent.messages[-2:])
        self.ask(self.resend())

    def step(self) -> None:
        """One call and its result."""
        self.num_steps += 1
        arguments = {"path": f"{self.folder}/{self.num_steps}.py", "offset": self.num_steps, "limit": 200}
        self.agent.step("read", arguments, f"row {self.num_steps} " * (NUM_WORDS // 2))

    def resend(self) -> Any:
        """The body of the next request: new objects, as a server reads them."""
        self.step()
        clock = f" It is {self.num_steps} o'clock." if self.changes else ""
        asked = {"role": "user", "content": self.agent.messages[1]["content"] + clock}
        body = {"messages": [self.agent.messages[0], asked, *self.agent.messages[2:]]}
        return json.loads(json.dumps(body))

    def ask(self, body: Any) -> str | None:
        """What is measured: the session of a request, and the request remembered there."""
        prompt = read_prompt(body)
        assert prompt is not None
        self.num_spelled = prompt.num_spelled
        found = self.families.find("tenant", prompt)
        family = None if found is None else found.family
        self.families.place("tenant", family or SESSION, prompt, ThreadHints(), is_explicit=False)
        return family


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.benchmark(timer=time.process_time)
def bench_finding_a_session(benchmark: Any, changes: bool) -> None:
    """A request of `NUM_TOKENS` tokens that names no session."""
    client = ResendingClient(changes)
    client.fill()
    name = "changed in its first message" if changes else "appended to"
    benchmark.extra_info |= {"name": f"{name}, {NUM_TOKENS:,} tokens", "limit_ms": LIMIT_MS}
    found = benchmark.pedantic(client.ask, setup=lambda: ((client.resend(),), {}), rounds=NUM_ROUNDS)
    assert (found, client.num_spelled) == (SESSION, 1)
