"""Where the pieces of a prompt begin that a later edit may take out: its messages, found by their tokens.

    messages   user "Fix the bug in ..."      tool "1 import os ..."
    needles    [Fix][the]..  ..[of][it]       [import][ os]..               a text's first and last tokens
    prompt     <|user|> Fix the bug ... of it <|end|> <|tool|> 1 import os ...
    pieces              [..............................)                    the text is exchanged: from its first token
                                             [........ [...............)    the message is left out: from the one before

Models with windows or recurrent states keep little of a prompt, and what an edit needs has to be named beforehand. What
is found here is a hint. A text that a template rewrites is not found, and then nothing is kept for it.

A needle lacks the outermost tokens of its text. What they are depends on what stands beside them. It knows no engine:
whether anybody wants pieces is learned from the receipts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from acmserve.context.transcript.message import FOLDABLE_ROLES, Message, texts
from acmserve.plan.request import MAX_FOLDABLE

_EDGE_CHARS = 200
_MIN_TOKENS, _MAX_TOKENS = 3, 24
_REMEMBERED = 4096

Span = tuple[int, int]


class Encoder(Protocol):
    """The part of a tokenizer that is used here."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""


class PieceFinder:
    """`is_wanted` until a receipt says that this model keeps everything anyway. One for all sessions of a server."""

    def __init__(self, tokenizer: Encoder) -> None:
        self.is_wanted = True
        self._tokenizer = tokenizer
        self._needle = lru_cache(_REMEMBERED)(self._encoded)

    def learn(self, receipt: Mapping[str, Any]) -> None:
        """Take the receipt of a request that named pieces."""
        self.is_wanted = receipt.get("edit_boundaries") is not None

    def find(self, prompt_token_ids: Sequence[int], messages: Sequence[Message]) -> tuple[Span, ...]:
        """Pieces `[start, end)` of the prompt, ascending. The largest, where they are more than a request may name."""
        data = np.asarray(prompt_token_ids, dtype=np.int32).tobytes()
        begins = list(self._begins(data, messages))
        ends = [min(following) for following in begins[1:]] + [len(prompt_token_ids)]
        spans = {(start, end) for starts, end in zip(begins, ends, strict=True) for start in starts if start < end}
        largest = sorted(spans, key=lambda span: span[0] - span[1])[:MAX_FOLDABLE]
        return tuple(sorted(largest))

    def _begins(self, data: bytes, messages: Sequence[Message]) -> Iterator[tuple[int, ...]]:
        """For each foldable message that is found: the end of the text before, and its own first token."""
        position, before = 0, None
        for message in messages:
            shown = texts(message)
            first = self._find(data, shown[0][1], position, at_end=False) if shown else None
            if message.get("role") in FOLDABLE_ROLES and (starts := {before, first} - {None}):
                yield tuple(sorted(start for start in starts if start is not None))
            position = position if first is None else first
            before = self._find(data, shown[-1][1], position, at_end=True) if shown else None
            position = position if before is None else before

    def _find(self, data: bytes, text: str, position: int, *, at_end: bool) -> int | None:
        """The token at which a text begins, or behind which it ends, from `position` on."""
        text = text.strip()
        needle = self._needle(text[-_EDGE_CHARS:] if at_end else text[:_EDGE_CHARS], at_end)
        if len(needle) < 4 * _MIN_TOKENS:
            return None
        found = data.find(needle, 4 * position)
        while found % 4 and found > 0:
            found = data.find(needle, found + 1)
        if found < 0:
            return None
        return found // 4 + len(needle) // 4 + 1 if at_end else max(found // 4 - 1, 0)

    def _encoded(self, text: str, at_end: bool) -> bytes:
        inner: NDArray[np.int32] = np.asarray(self._tokenizer.encode(text, add_special_tokens=False)[1:-1], np.int32)
        return (inner[-_MAX_TOKENS:] if at_end else inner[:_MAX_TOKENS]).tobytes()
