"""How the context layer counts: where each token of a text begins. The tokenizer itself is the server's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """A tokenizer that reports character offsets. Deterministic. No special tokens are added."""

    def starts(self, text: str) -> Sequence[int]:
        """Character offset at which each token of `text` begins, ascending. Its length is the number of tokens."""


class RememberedStarts:
    """A tokenizer that looks at each text once, as long as it lives. For one piece of work on one conversation."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._found: dict[str, Sequence[int]] = {}

    def starts(self, text: str) -> Sequence[int]:
        """See `Tokenizer`."""
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = self._tokenizer.starts(text)
        return found


def count_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Tokens of a text that stands alone. In a rendered prompt it may be one or two more or less."""
    return len(tokenizer.starts(text)) if text else 0
