"""One turn of a session, as it was served: its receipt, what was edited and evicted in front of it, and its times.

    edits, evictions --> prompt --> engine: receipt, time to first token --> answer, or the client left

A turn is one request to the engine, so a tool loop on the server makes one for each step. A record holds numbers, ids
and names of the server's own. No text of the conversation is in it, so a redaction has nothing to take out. It knows
neither who records nor where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class TurnEnd(Enum):
    """How a turn ended. `ABORTED`: the client left. `FAILED`: the engine refused the request, or broke off."""

    ANSWERED = "answered"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TurnEdit:
    """One edit that the turn was the first to see. `by` is who asked for it: `model` or `caller`.

    `saved_tokens` are those that the prompt has fewer because of it. A restore has a negative number.
    """

    kind: str
    fragment_id: str | None
    saved_tokens: int
    by: str

    def as_dict(self) -> dict[str, Any]:
        """The edit as routes show it."""
        return {"kind": self.kind, "id": self.fragment_id, "tokens_saved": self.saved_tokens, "by": self.by}


@dataclass(frozen=True, slots=True)
class TurnEviction:
    """One eviction that the turn was the first to see. `kind` is `budget`, `context_management` or `caller`.

    `name` is the policy, or the type of the vendor's edit. `levels` has the tokens of each level.
    """

    kind: str
    name: str
    num_tokens: int
    levels: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The eviction as routes show it."""
        return {"kind": self.kind, "name": self.name, "tokens": self.num_tokens, "levels": dict(self.levels)}


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One turn. `receipt` is None where the engine said none before the turn ended.

    `step` counts within a tool loop on the server, and is None elsewhere. `first_token_seconds` is None where nobody
    knows it. Times are those of the engine's request.
    """

    index: int
    created_at: float
    route: str
    request_id: str
    step: int | None
    receipt: Mapping[str, Any] | None
    edits: tuple[TurnEdit, ...]
    evictions: tuple[TurnEviction, ...]
    prompt_tokens: int
    budget_tokens: int | None
    first_token_seconds: float | None
    seconds: float
    end: TurnEnd

    def as_dict(self) -> dict[str, Any]:
        """The turn as routes show it, and as the file keeps it."""
        return {
            "index": self.index,
            "created_at": self.created_at,
            "route": self.route,
            "request_id": self.request_id,
            "step": self.step,
            "end": self.end.value,
            "receipt": None if self.receipt is None else dict(self.receipt),
            "edits": [edit.as_dict() for edit in self.edits],
            "evictions": [eviction.as_dict() for eviction in self.evictions],
            "prompt_tokens": self.prompt_tokens,
            "budget_tokens": self.budget_tokens,
            "ttft_s": self.first_token_seconds,
            "total_s": self.seconds,
        }
