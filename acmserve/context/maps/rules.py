"""What a context map is measured by: the served tokenizer, and the texts that must not stand in it.

The budget counts the whole map as it is written, headers included (SEEDS: B tokens). A special token of the chat
template inside an item would end the message that the map stands in, so such an item is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.text import render_map
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class MapRules:
    """`reserved` are the texts of the tokenizer's special tokens."""

    tokenizer: Tokenizer
    reserved: tuple[str, ...] = ()

    def count(self, context_map: ContextMap) -> int:
        """Tokens of the map as it is written."""
        return count_tokens(self.tokenizer, render_map(context_map))

    def fits(self, context_map: ContextMap) -> bool:
        """Whether the map is within its budget."""
        return self.count(context_map) <= context_map.budget

    def check_text(self, text: str, field: str) -> None:
        """Raise `InvalidRequest` for a text that holds a special token."""
        for token in self.reserved:
            if token in text:
                raise InvalidRequest(field, f"holds {token!a}, a token that steers the chat template.", "Leave it out.")

    def check_budget(self, budget: int, field: str) -> None:
        """Raise `InvalidRequest` for a budget that the headers alone exceed."""
        num_headers = self.count(ContextMap())
        if budget < num_headers:
            raise InvalidRequest(
                field,
                f"{budget} tokens are less than the map's headers alone, {num_headers}.",
                f"Give {num_headers} tokens at least; 1024 is what the paper used.",
            )
