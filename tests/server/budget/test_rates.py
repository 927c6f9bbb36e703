"""What `auto` knows of the engine's speed, and of the chat template's own tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acmserve.context.transcript.template_rules import Overheads
from acmserve.server.budget.rates import Rates
from acmserve.server.models.template_probe import probe_template


def test_rates_begin_with_a_guess() -> None:
    assert Rates().move_rate > Rates().prefill_rate > 0


def test_rates_are_those_of_the_answers() -> None:
    rates = Rates()
    for _ in range(3):
        rates.note(1000, 0, 0.5)
    rates.note(8, 0, 9.0)
    rates.note(100, 5000, 0.15)
    assert rates.prefill_rate == pytest.approx(2000)
    assert rates.move_rate == pytest.approx(50_000)


def test_moving_is_never_said_to_be_slower_than_computing() -> None:
    rates = Rates()
    rates.note(1000, 0, 0.5)
    rates.note(0, 100, 50.0)
    assert rates.move_rate == rates.prefill_rate


def test_a_template_is_measured_by_small_chats() -> None:
    def render(messages: list[dict[str, Any]]) -> int:
        total = 11
        for message in messages:
            total += (9 if message["role"] == "tool" else 5) + len(message["content"])
            for call in message.get("tool_calls") or ():
                total += 17 + len(call["function"]["name"]) + len(json.dumps(call["function"]["arguments"]))
        return total

    assert probe_template(render, len) == (Overheads(message=5, call=17, result=9), 11)
