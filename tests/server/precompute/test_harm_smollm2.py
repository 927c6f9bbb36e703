"""Harm of moved KV on a real model, and what `auto` learns of it.

By the calibration of the server, `auto` moves everything.
"""

from __future__ import annotations

import random
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest

from acmserve.plan.calibration import EVERY, LEVELS
from acmserve.plan.harm.level import LIMIT
from tests.support import http

KEYS = ("river", "stone", "cloud", "lamp", "chair", "paper", "glass", "metal")
NUM_RIDDLES = 3
VALUES = ("red", "blue", "copper", "silver", "Paris", "Lima", "oak", "birch")


@dataclass
class Talk:
    """A session whose first text is folded before each question."""

    server: str
    fidelity: str
    precompute: str = "heal"
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str, max_tokens: int = 1, **fields: Any) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": text})
        body = {
            "model": "smollm2",
            "messages": self.messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "session_id": self.session,
            "acm": {"fidelity": self.fidelity, "precompute": self.precompute},
        }
        response = http.post(f"{self.server}/v1/chat/completions", json=body | fields)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        self.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        return answer

    def ask_behind_a_fold(self, first: str, second: str, question: str, **fields: Any) -> dict[str, Any]:
        """Two texts, of which the first is folded, and a question. The pause behind it is over."""
        start = len(self.messages)
        self.ask(first)
        self.ask(second)
        fold = {"edits": [{"op": "fold", "messages": {"start": start, "end": start + 1}}]}
        http.post(self.url("/edits"), json=fold).raise_for_status()
        answer = self.ask(question, **fields)
        for _ in range(6000):
            if not http.get(self.url()).json()["precompute"]["working"]:
                return answer
            time.sleep(0.05)
        pytest.fail("the server never ends computing")

    def url(self, path: str = "") -> str:
        return f"{self.server}/v1/acm/sessions/{self.session}{path}"

    @property
    def totals(self) -> dict[str, Any]:
        told: dict[str, Any] = http.get(self.url("/totals")).json()
        return told


def values(seed: int, num_rounds: int) -> str:
    rng = random.Random(seed)
    return "\n".join(f"{key}: {rng.choice(VALUES)}" for _ in range(num_rounds) for key in KEYS)


def riddle(number: int) -> tuple[str, str]:
    """What names mean, and a text that is nothing without it and has no phrase of it."""
    meaning = "'alpha' means 'Lisbon', 'beta' means 'Quito', 'gamma' means 'Cairo' and 'delta' means 'Oslo'."
    first = f"In what follows, {meaning} Speak of banana {number}. " * 5
    text = "She went from alpha to beta, then to gamma, and lived in delta. She is the boss of it. It rained at night."
    return first, text


def test_superseded_values_are_harmed_more_than_prose(server: str) -> None:
    """`reuse` of values whose older ones are gone, beside `reuse` of a text about something else."""
    harm = {}
    for name in ("values", "prose"):
        talk = Talk(server, "reuse")
        for seed in range(1, 3):
            old, new = f"The values:\n{values(seed, 8)}", f"The values have changed:\n{values(100 + seed, 1)}"
            if name == "prose":
                old = f"Day {seed}. " + "The ship left the harbor at noon, and its captain wrote a letter. " * 10
            answer = talk.ask_behind_a_fold(old, new, "river:", max_tokens=9)
            assert answer["acm"]["receipt"]["moved_tokens"] > 30
            assert answer["choices"][0].get("logprobs") is None
            assert answer.get("prompt_logprobs") is None
        (told,) = talk.totals["harm"]
        assert (told["fidelity"], told["answers"]) == ("reuse", 2)
        harm[name] = told["nats"]
    print(harm)
    assert harm["values"] > 0.02
    assert harm["values"] > 2 * abs(harm["prose"])


def test_auto_moves_less_after_harm(server: str) -> None:
    """Without precompute nothing is judged, and every turn moves."""
    moved: dict[str, list[int]] = {}
    for precompute in ("off", "heal"):
        talk = Talk(server, "auto", precompute)
        talk.messages.append({"role": "system", "content": "Agent 7: be brief."})
        moved[precompute] = []
        for number in range(NUM_RIDDLES):
            answer = talk.ask_behind_a_fold(*riddle(number), "Where is she now?", max_tokens=26, ignore_eos=True)
            moved[precompute].append(answer["acm"]["receipt"]["moved_tokens"])
        told = talk.totals
        print(precompute, moved, told["harm"], told["auto_level"])
    assert min(moved["off"]) > 30
    assert moved["heal"][0] > 30
    assert moved["heal"][-1] == 0
    (judged,) = told["harm"]
    assert judged["upper"] > LIMIT
    assert told["auto_level"] in LEVELS
    assert told["auto_level"] != EVERY
    metrics = http.get(f"{server}/metrics").text
    change = 'acmserve:auto_level_changes_total{direction="careful",model_name="smollm2",scope="session"}'
    assert re.search(f"^{re.escape(change)} [1-9]", metrics, re.MULTILINE)
