"""Sessions as `/usage` tells them, for tests of what shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from acmserve.client.views.turns import NewestTurn, TurnSums, UsageOfSession
from acmserve.context.session.turns.totals import TurnTotals

NO_SUMS = TurnSums(**TurnTotals().as_dict())
TURN = NewestTurn(0, 1.0, "answered", 600, 100, None, 0.25)


def used(name: str, *, used_at: float = 0.0, prompt: int | None = 600, **more: Any) -> UsageOfSession:
    """A session. `more` are fields of it, or of its totals."""
    sums = {key: value for key, value in more.items() if hasattr(NO_SUMS, key)}
    fields: dict[str, Any] = {
        "session_id": name,
        "branch_of": None,
        "thread_of": None,
        "created_at": 0.0,
        "used_at": used_at,
        "num_messages": 4,
        "num_hidden_fragments": 0,
        "running": False,
        "precomputing": False,
        "budget_tokens": 1000,
        "last_turn": None if prompt is None else replace(TURN, prompt_tokens=prompt),
        "totals": replace(NO_SUMS, **sums),
    }
    return UsageOfSession(**fields | {key: value for key, value in more.items() if key not in sums})
