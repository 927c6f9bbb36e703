"""One turn of a session, as it was served: its receipt, what was edited and evicted in front of it, and its times.

    edits, evictions --> prompt --> engine: receipt, time to first token --> answer, or the client left

A turn is one request to the engine. So a tool loop on the server makes a turn for each step. A summary that is asked
for behind the conversation makes one, too. A record holds numbers, ids and names of the server's own. No text of the
conversation is in it, so a redaction has nothing to take out. It knows neither who records nor where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MAX_ID_CHARS = 128
"""Of an id in a record. A request's is the client's own where it sends `X-Request-Id`."""


class TurnEnd(Enum):
    """How a turn ended. `ABORTED`: the client left. `FAILED`: the engine refused the request, or broke off."""

    ANSWERED = "answered"
    ABORTED = "aborted"
    FAILED = "failed"


class TurnPurpose(Enum):
    """What a request to the engine was for. A `SUMMARY` is read by the server alone."""

    ANSWER = "answer"
    SUMMARY = "summary"


class EvictionKind(Enum):
    """What demanded an eviction: a budget, `context_management` of a request, or a call of `/evict`."""

    BUDGET = "budget"
    CONTEXT_MANAGEMENT = "context_management"
    CALLER = "caller"


@dataclass(frozen=True, slots=True)
class TurnOrigin:
    """What a request of a session is. `step` counts within a tool loop on the server, and is None elsewhere.

    `branch` is the call of the model that opened the branch in which the step was made.
    """

    route: str = "/v1/chat/completions"
    step: int | None = None
    purpose: TurnPurpose = TurnPurpose.ANSWER
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEdit:
    """One edit that was made since the turn before. `by` is who asked for it: `model` or `caller`.

    `saved_tokens` are those that the prompt has fewer because of it. A restore has a negative number.
    """

    kind: str
    fragment_ids: tuple[str, ...]
    saved_tokens: int
    by: str

    def as_dict(self) -> dict[str, Any]:
        """The edit as routes show it."""
        ids = list(self.fragment_ids)
        return {"kind": self.kind, "fragment_ids": ids, "tokens_saved": self.saved_tokens, "by": self.by}


@dataclass(frozen=True, slots=True)
class TurnEviction:
    """One eviction that the turn was the first to see.

    `name` is the policy, or the type of the vendor's edit. `levels` has the tokens of each level of a policy's.
    """

    kind: EvictionKind
    name: str
    num_tokens: int
    levels: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The eviction as routes show it."""
        return {"kind": self.kind.value, "name": self.name, "tokens": self.num_tokens, "levels": dict(self.levels)}


@dataclass(frozen=True, slots=True)
class LastTurn:
    """A turn in a few numbers, for a list of sessions. `fallback_reason` says why a move was refused."""

    index: int
    created_at: float
    end: TurnEnd
    prompt_tokens: int
    computed_tokens: int | None
    fallback_reason: str | None
    first_token_seconds: float | None

    def as_dict(self) -> dict[str, Any]:
        """The turn as routes show it."""
        return {
            "index": self.index,
            "created_at": self.created_at,
            "end": self.end.value,
            "prompt_tokens": self.prompt_tokens,
            "computed_tokens": self.computed_tokens,
            "fallback_reason": self.fallback_reason,
            "ttft_s": self.first_token_seconds,
        }


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One turn. `receipt` is None where the engine said none before the turn ended.

    `first_token_seconds` is None where nobody knows it. Times are those of the engine's request. `index` counts from
    the session's first turn, and `TurnHistory` sets it, as it sets edits and evictions.
    """

    created_at: float
    origin: TurnOrigin
    request_id: str
    receipt: Mapping[str, Any] | None
    prompt_tokens: int
    output_tokens: int
    budget_tokens: int | None
    first_token_seconds: float | None
    seconds: float
    end: TurnEnd
    index: int = 0
    edits: tuple[TurnEdit, ...] = ()
    evictions: tuple[TurnEviction, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The turn as routes show it, and as the file keeps it."""
        return {
            "index": self.index,
            "created_at": self.created_at,
            "route": self.origin.route,
            "step": self.origin.step,
            "purpose": self.origin.purpose.value,
            "branch": self.origin.branch,
            "request_id": self.request_id,
            "end": self.end.value,
            "receipt": None if self.receipt is None else dict(self.receipt),
            "edits": [edit.as_dict() for edit in self.edits],
            "evictions": [eviction.as_dict() for eviction in self.evictions],
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "budget_tokens": self.budget_tokens,
            "ttft_s": self.first_token_seconds,
            "total_s": self.seconds,
        }

    def in_short(self) -> LastTurn:
        """The turn without its moves, edits and evictions."""
        known = self.receipt or {}
        return LastTurn(
            self.index,
            self.created_at,
            self.end,
            self.prompt_tokens,
            known.get("computed_tokens"),
            known.get("fallback_reason"),
            self.first_token_seconds,
        )
