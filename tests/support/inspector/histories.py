"""Conversations and turns that are worth looking at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.context.session.turns.turn import EvictionKind, TurnEdit, TurnEviction
from tests.support.recorded_turns import answered, receipt
from tests.support.server.acm_app import lines

MARKED = '<img src="x" onerror="document.title = 1">'
"""Text of a conversation that a careless page would run."""


def long_history(num_turns: int, num_lines: int = 6) -> list[dict[str, Any]]:
    """A system prompt, and turns of an agent that reads logs."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"You keep the harbour's records. {MARKED}"}]
    for turn in range(num_turns):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "read", "arguments": f'{{"log": {turn}}}'}}
        messages.append({"role": "user", "content": f"What does log {turn} say?"})
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": lines(num_lines, f"log {turn}:")})
        messages.append({"role": "assistant", "content": f"Log {turn} says nothing of interest."})
    return messages


def served_turns(num_turns: int = 14, folded: Sequence[str] = ("f0aa01", "f1a2b3")) -> list[Any]:
    """Turns as an agent has them: at 9 a move is refused, 12 sees a fold whose text behind it moves, 13 an eviction.

    `folded` are the fragments of turns 9 and 12.
    """
    events: list[Any] = []
    prompt = 300
    for index in range(num_turns):
        more: dict[str, Any] = {
            "budget_tokens": 2400,
            "first_token_seconds": 0.2 + 0.01 * index,
            "created_at": 1.76e9 + 60 * index,
        }
        kept, moved, computed = prompt - 60, 0, 60
        told: dict[str, Any] = {"fidelity": "reuse"}
        if index == 0:
            kept, computed = 0, prompt
        if index == 9:
            events.append(TurnEdit("fold", (folded[0],), 120, "caller"))
            kept, computed, told = 200, prompt - 200, told | {"fallback_reason": "source_evicted"}
        if index == 12:
            events.append(TurnEdit("fold", (folded[1],), 840, "model"))
            prompt -= 700
            kept, moved, computed = 400, prompt - 520, 120
            told |= {"moves": [{"dst_start": 460, "src_start": 1300, "num_tokens": moved}]}
        if index == 13:
            events.append(TurnEviction(EvictionKind.BUDGET, "recency", 260, {"remove": 260}))
            told |= {"precomputed_tokens": 200}
        said = receipt(kept, moved, computed, **told)
        events.append(answered(receipt=said, prompt_tokens=prompt, **more))
        prompt += 140
    return events
