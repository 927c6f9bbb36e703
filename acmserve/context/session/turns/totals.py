"""Sums over the life of a session. They stay when the turns themselves have gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from acmserve.context.session.turns.turn import SessionTurn, TurnEdit, TurnEviction
from acmserve.errors import IntegrityError

RECEIPT_COUNTS = (
    "prompt_tokens",
    "kept_tokens",
    "moved_tokens",
    "computed_tokens",
    "precomputed_tokens",
    "loaded_tokens",
    "repaired_tokens",
)
"""Counts that are added up under the name that the receipt has for them."""


@dataclass(frozen=True, slots=True)
class TurnTotals:
    """`turns_without_receipt` are those whose prompts are in no sum.

    Edits and evictions count when they are made. `precomputed_tokens` are part of the kept ones, `loaded_tokens` of the
    kept and moved ones, and `repaired_tokens` of the computed ones. `background_tokens` were computed by background
    requests, which are no turns.
    """

    turns: int = 0
    turns_without_receipt: int = 0
    prompt_tokens: int = 0
    kept_tokens: int = 0
    moved_tokens: int = 0
    computed_tokens: int = 0
    precomputed_tokens: int = 0
    loaded_tokens: int = 0
    repaired_tokens: int = 0
    output_tokens: int = 0
    evicted_tokens: int = 0
    edits: int = 0
    evictions: int = 0
    fallbacks: int = 0
    background_tokens: int = 0

    def plus(self, turn: SessionTurn) -> TurnTotals:
        """The sums with one more turn. Its edits and evictions were counted when they were made."""
        added = {"turns": 1, "output_tokens": turn.output_tokens}
        if turn.receipt is None:
            added["turns_without_receipt"] = 1
        else:
            added |= {name: turn.receipt[name] for name in RECEIPT_COUNTS}
            added["fallbacks"] = int(turn.receipt["fallback_reason"] is not None)
        return self._raised(added)

    def noted(self, edits: Sequence[TurnEdit], evictions: Sequence[TurnEviction]) -> TurnTotals:
        """The sums with more edits and evictions."""
        num_tokens = sum(eviction.num_tokens for eviction in evictions)
        return self._raised({"edits": len(edits), "evictions": len(evictions), "evicted_tokens": num_tokens})

    def with_background(self, num_tokens: int) -> TurnTotals:
        """The sums with what a background request computed."""
        return self._raised({"background_tokens": num_tokens})

    def _raised(self, added: Mapping[str, int]) -> TurnTotals:
        return replace(self, **{name: getattr(self, name) + number for name, number in added.items()})

    def as_dict(self) -> dict[str, int]:
        """Name -> number."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers where a sum is negative, or the prompts are not their parts."""
        wrong = {name: number for name, number in self.as_dict().items() if number < 0}
        parts = self.kept_tokens + self.moved_tokens + self.computed_tokens
        if wrong or parts != self.prompt_tokens:
            raise IntegrityError(f"totals: prompts of {self.prompt_tokens} tokens have parts of {parts}, {wrong} < 0")
