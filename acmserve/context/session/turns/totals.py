"""Sums over all turns of a session. They stay when the turns themselves have gone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from acmserve.context.session.turns.turn import SessionTurn
from acmserve.errors import IntegrityError

RECEIPT_COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens", "precomputed_tokens", "repaired_tokens")
"""Counts that are added up under the name that the receipt has for them."""


@dataclass(frozen=True, slots=True)
class TurnTotals:
    """`turns_without_receipt` are those whose tokens are in no sum. `edits` and `evictions` count what took effect."""

    turns: int = 0
    turns_without_receipt: int = 0
    prompt_tokens: int = 0
    kept_tokens: int = 0
    moved_tokens: int = 0
    computed_tokens: int = 0
    precomputed_tokens: int = 0
    repaired_tokens: int = 0
    evicted_tokens: int = 0
    edits: int = 0
    evictions: int = 0
    fallbacks: int = 0

    @property
    def stock_kept_tokens(self) -> int:
        """What stock vLLM's prefix cache would have kept: all that was kept where it was, but for precomputed KV."""
        return self.kept_tokens - self.precomputed_tokens

    @property
    def saved_tokens(self) -> int:
        """Tokens that were not computed, and that stock vLLM would have computed."""
        return self.kept_tokens + self.moved_tokens - self.stock_kept_tokens

    def plus(self, turn: SessionTurn) -> TurnTotals:
        """The sums with one more turn."""
        added = {"turns": 1, "edits": len(turn.edits), "evictions": len(turn.evictions)}
        added["evicted_tokens"] = sum(eviction.num_tokens for eviction in turn.evictions)
        if turn.receipt is None:
            added["turns_without_receipt"] = 1
        else:
            added |= {name: turn.receipt[name] for name in ("prompt_tokens", *RECEIPT_COUNTS)}
            added["fallbacks"] = int(turn.receipt["fallback_reason"] is not None)
        return replace(self, **{name: getattr(self, name) + number for name, number in added.items()})

    def as_dict(self) -> dict[str, int]:
        """Name -> number."""
        return {sum_.name: getattr(self, sum_.name) for sum_ in fields(self)}

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers where a sum is negative, or the prompts are not their parts."""
        wrong = {name: number for name, number in self.as_dict().items() if number < 0}
        parts = self.kept_tokens + self.moved_tokens + self.computed_tokens
        if wrong or parts != self.prompt_tokens:
            raise IntegrityError(f"totals: prompts of {self.prompt_tokens} tokens have parts of {parts}, {wrong} < 0")
