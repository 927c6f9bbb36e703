"""A tokenizer that reads a message once, however many prompts it stands in.

    <|im_start|>  user\\nwords ...  <|im_end|>  \\n  <|im_start|>  assistant\\n
    a special token ends a piece: no token reaches over it, so each piece has the same tokens in every prompt

A sweep tokenizes some thousand prompts of 100,000 tokens, which share nearly all of their messages.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any


class MessageTokens:
    """Stands for a tokenizer of `transformers` in a `PromptWriter`."""

    def __init__(self, tokenizer: Any) -> None:
        special = sorted(map(str, tokenizer.get_added_vocab()), key=len, reverse=True)
        self._tokenizer = tokenizer
        self._ends = re.compile("|".join(map(re.escape, special)))
        self._known: dict[str, tuple[int, ...]] = {}

    def apply_chat_template(self, *args: Any, **options: Any) -> Any:
        """As the tokenizer writes it."""
        return self._tokenizer.apply_chat_template(*args, **options)

    def __call__(self, text: str, **options: Any) -> Any:
        """`input_ids` of the text, a list of int."""
        tokens: list[int] = []
        start = 0
        for found in self._ends.finditer(text):
            tokens += self._tokens(text[start : found.end()], options)
            start = found.end()
        tokens += self._tokens(text[start:], options)
        return SimpleNamespace(input_ids=tokens)

    def _tokens(self, piece: str, options: dict[str, Any]) -> tuple[int, ...]:
        if piece and piece not in self._known:
            self._known[piece] = tuple(self._tokenizer(piece, **options).input_ids)
        return self._known[piece] if piece else ()
