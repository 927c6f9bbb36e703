"""Clients of a server, all at once: some read their answer, some leave while it is written.

    wave     |  client 0  turn, turn, ... |
             |  client 1  turn, turn, ... |   then every complete answer is asked for again, under a salt of its own
             |  ...                       |

It knows HTTP alone. An answer is right where the same messages, sent without a session, are answered alike.
"""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support import http
from tests.support.soak.soak import Found

NUM_CLIENTS = 8
MAX_TOKENS = 24
CHAT = "/v1/chat/completions"
MAX_DIFFERENCE = 1e-4
"""Of log-probabilities: the server's model hardly heeds what it reads, and it computes both answers alike."""
Messages = list[dict[str, str]]


@dataclass
class Client:
    """One session, and what it was answered."""

    url: str
    model: str
    session_id: str
    rng: random.Random
    messages: Messages = field(default_factory=list)
    answered: list[tuple[Messages, list[dict[str, Any]]]] = field(default_factory=list)
    num_unsaved: int = 0
    num_left: int = 0

    def turn(self) -> None:
        """Say something, and read the answer or leave. Sometimes an old message is cut short first."""
        number = len(self.messages)
        words = " ".join(str(self.rng.randrange(1000)) for _ in range(self.rng.randint(5, 60)))
        self.messages = [*self.messages, {"role": "user", "content": f"{self.session_id}, {number}: {words}"}]
        if number > 2 and self.rng.random() < 0.4:
            index = self.rng.randrange(number)
            self.messages[index] = {**self.messages[index], "content": "[folded]"}
        with httpx.Client(base_url=self.url, timeout=http.SECONDS, verify=False) as client:
            if self.rng.random() < 0.5:
                self._leave(client)
            else:
                self._read(client)

    def _body(self) -> dict[str, Any]:
        return {"model": self.model, "session_id": self.session_id, **question(self.messages)}

    def _leave(self, client: httpx.Client) -> None:
        num_events = self.rng.randrange(6)
        endless = {"max_tokens": 500, "ignore_eos": True, "stream": True}  # without a script it ends after a word
        with client.stream("POST", CHAT, json={**self._body(), **endless}) as answer:
            assert answer.status_code == 200, answer.read()
            for _, _event in zip(range(num_events), answer.iter_lines(), strict=False):
                pass
        self.num_left += 1

    def _read(self, client: httpx.Client) -> None:
        acm = {"fidelity": self.rng.choice(["exact", "reuse"])}
        answer = client.post(CHAT, json={**self._body(), "acm": acm})
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert said["acm"]["receipt"]["prompt_tokens"] > 0
        self.num_unsaved += "storage" in said["acm"]
        self.answered.append((list(self.messages), said["choices"][0]["logprobs"]["content"]))
        self.messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})


def question(messages: Messages) -> dict[str, Any]:
    return {"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "logprobs": True, "top_logprobs": 2}


class Storm:
    """`NUM_CLIENTS` clients of one server. On a one-layer model `reuse` answers as `exact` does."""

    def __init__(self, url: str, model: str, seed: int) -> None:
        self.found = Found()
        self._url = url
        self._model = model
        self.clients = [
            Client(url, model, f"storm-{seed}-{index}", random.Random(f"storm {seed} {index}"))
            for index in range(NUM_CLIENTS)
        ]

    def wave(self, num_turns: int) -> None:
        """So many turns of every client. Raises AssertionError where a chat fails."""

        def turns(client: Client) -> None:
            for _ in range(num_turns):
                client.turn()

        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            list(pool.map(turns, self.clients))
        self.found.counts["disconnects"] = sum(client.num_left for client in self.clients)
        self.found.counts["answers"] = sum(len(client.answered) for client in self.clients) + self.num_checked
        self.found.counts["answers not saved"] = sum(client.num_unsaved for client in self.clients)

    @property
    def num_checked(self) -> int:
        return self.found.counts["checked"]

    def check(self) -> None:
        """Wait until the server rests with every block free, then compare the answers with those of nobody."""
        self._rest()
        for client in self.clients:
            for number, (messages, answer) in enumerate(client.answered):
                body = {"model": self._model, "cache_salt": f"{client.session_id} {number} {self.num_checked}"}
                fresh = http.post(f"{self._url}{CHAT}", json={**body, **question(messages)}).json()
                self._compare(answer, fresh["choices"][0]["logprobs"]["content"], client.session_id)
            client.answered.clear()

    def _rest(self) -> None:
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            end = time.monotonic() + http.SECONDS
            while (value := metric(self._url, name)) > 0:
                assert time.monotonic() < end, f"{name} stays at {value}"
                time.sleep(0.1)

    def _compare(self, answer: list[dict[str, Any]], fresh: list[dict[str, Any]], session_id: str) -> None:
        """Token by token. Where two tokens are as likely as each other, the texts may part."""
        self.found.counts["checked"] += 1
        for mine, theirs in zip(answer, fresh, strict=False):
            difference = abs(mine["logprob"] - theirs["logprob"])
            if mine["token"] != theirs["token"]:
                first, second = (entry["logprob"] for entry in theirs["top_logprobs"])
                if first - second > MAX_DIFFERENCE:
                    self.found.mismatches.append(f"{session_id}: {json.dumps([mine, theirs])}")
                return
            self.found.largest_difference = max(self.found.largest_difference, difference)
            if difference > MAX_DIFFERENCE:
                self.found.mismatches.append(f"{session_id}: {difference}")
                return
        if len(answer) != len(fresh):
            self.found.mismatches.append(f"{session_id}: {len(answer)} tokens, and {len(fresh)} of nobody")


def metric(url: str, name: str) -> float:
    """The sum over all sets of labels."""
    lines = http.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))
