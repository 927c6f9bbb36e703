"""Counts the tokens of a rendered prompt piece by piece, so that a prompt that grows costs what is new in it.

    <|im_start|>  user\\nFix it.  <|im_end|>  \\n  <|im_start|>  assistant\\n ...
         1             4             1       1        1           2          pieces are remembered by their digest

A tokenizer takes the special tokens out of a text first, and tokenizes what stands between them by itself. So the sum
over the pieces is the count of the whole, to the token. `exact` says whether that holds for this tokenizer, tried with
a prompt. Where it does not, the text is counted at once. Pieces of the template are remembered for each tenant, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from acmserve.server.http.text_memory import TextMemory

MAX_PIECES = 2**17
_TRIAL = "Ahoy! {0}user\n Two  words.{1}\n{0}assistant\n\n\tIt's 1234; ok? {1}{1} {0}\n"


class PieceCounter:
    """`count` counts a whole text, special tokens in it read as such. `special` are the texts of these."""

    def __init__(self, count: Callable[[str], int], special: list[str]) -> None:
        self._count = count
        wanted = sorted((text for text in special if text.strip()), key=lambda text: (-len(text), text))
        self._cut = re.compile("(" + "|".join(map(re.escape, wanted)) + ")") if wanted else None
        self._known: TextMemory[int] = TextMemory(MAX_PIECES)
        self.exact = bool(wanted) and self._is_exact(wanted)

    def _is_exact(self, wanted: list[str]) -> bool:
        text = _TRIAL.format(wanted[0], wanted[-1])
        return self._sum(text) == self._count(text)

    def count(self, text: str) -> int:
        """Tokens of a prompt."""
        return self._sum(text) if self.exact else self._piece(text)

    def _sum(self, text: str) -> int:
        assert self._cut is not None
        return sum([self._piece(piece) for piece in self._cut.split(text) if piece])

    def _piece(self, piece: str) -> int:
        return self._known.of(piece, self._count)


def piece_counter(tokenizer: Any) -> PieceCounter:
    """The counter of a tokenizer of vLLM's."""
    added: dict[str, int] = tokenizer.get_added_vocab() if hasattr(tokenizer, "get_added_vocab") else {}

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return PieceCounter(count, list(added))
