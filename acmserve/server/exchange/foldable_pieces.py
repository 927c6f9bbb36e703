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
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from acmserve.context.transcript.message import FOLDABLE_ROLES, Message, texts
from acmserve.plan.repair import Span
from acmserve.plan.request import MAX_FOLDABLE
from acmserve.server.http.tenants import TENANT

_EDGE_CHARS = 200
_MIN_TOKENS, _MAX_TOKENS = 3, 24
_REMEMBERED = 4096


class Encoder(Protocol):
    """The part of a tokenizer that is used here."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""


class PieceFinder:
    """`is_wanted` until a receipt says that this model keeps everything anyway. One for all sessions of a server."""

    def __init__(self, tokenizer: Encoder) -> None:
        self.is_wanted = True
        self._tokenizer = tokenizer
        self._needles: dict[int, bytes] = {}

    def learn(self, receipt: Mapping[str, Any]) -> None:
        """Take the receipt of a request that named pieces."""
        self.is_wanted = receipt.get("edit_boundaries") is not None

    def find(self, prompt_token_ids: Sequence[int], messages: Sequence[Message]) -> tuple[Span, ...]:
        """Pieces `[start, end)` of the prompt, ascending. The largest, where they are more than a request may name."""
        data = np.asarray(prompt_token_ids, dtype=np.int32).tobytes()
        heads = list(self._heads(data, messages))
        begins = [starts for starts in self._begins(data, messages, heads) if starts]
        ends = [*(min(following) for following in begins[1:]), len(prompt_token_ids)][: len(begins)]
        spans = {(start, end) for starts, end in zip(begins, ends, strict=True) for start in starts if start < end}
        largest = sorted(spans, key=lambda span: span[0] - span[1])[:MAX_FOLDABLE]
        return tuple(sorted(largest))

    def _heads(self, data: bytes, messages: Sequence[Message]) -> Iterator[int | None]:
        """The first token of each message's text, None where it is not found. They are looked for in order."""
        position = 0
        for message in messages:
            shown = texts(message)
            needle = self._needle(shown[0][1].strip()[:_EDGE_CHARS], False) if shown else b""
            found = _find(data, needle, position)
            yield None if found is None else max(found - 1, 0)
            position = position if found is None else found + len(needle) // 4

    def _begins(
        self, data: bytes, messages: Sequence[Message], heads: Sequence[int | None]
    ) -> Iterator[tuple[int, ...]]:
        """Of each foldable message: the end of the text before, and its own first token, as far as they are found."""
        before: int | None = None
        for index, message in enumerate(messages):
            head = heads[index]
            is_foldable = message.get("role") in FOLDABLE_ROLES
            yield tuple(sorted({place for place in (before, head) if place is not None})) if is_foldable else ()
            before = None
            if head is not None:
                limit = next((place for place in islice(heads, index + 1, None) if place is not None), len(data) // 4)
                before = self._tail(data, texts(message)[-1][1], head, limit)

    def _tail(self, data: bytes, text: str, start: int, end: int) -> int | None:
        """Behind the last token of a text that ends in `[start, end)`. A text may repeat itself: the last place."""
        needle = self._needle(text.strip()[-_EDGE_CHARS:], True)
        found = _find(data, needle, start, end)
        return None if found is None else min(found + len(needle) // 4 + 1, end)

    def _needle(self, text: str, at_end: bool) -> bytes:
        """Known by a hash with the key of the process, so no text is kept, and each tenant's is encoded anew."""
        key = hash((TENANT.get(), text, at_end))
        if key not in self._needles:
            self._needles[key] = self._encoded(text, at_end)
            if len(self._needles) > _REMEMBERED:
                del self._needles[next(iter(self._needles))]
        return self._needles[key]

    def _encoded(self, text: str, at_end: bool) -> bytes:
        inner: NDArray[np.int32] = np.asarray(self._tokenizer.encode(text, add_special_tokens=False)[1:-1], np.int32)
        return (inner[-_MAX_TOKENS:] if at_end else inner[:_MAX_TOKENS]).tobytes()


def _find(data: bytes, needle: bytes, start: int, end: int | None = None) -> int | None:
    """The token from `start` on where a needle is found, the last one in front of `end` where there is one."""
    if len(needle) < 4 * _MIN_TOKENS:
        return None
    if end is None:
        found = data.find(needle, 4 * start)
        while found % 4 and found > 0:
            found = data.find(needle, found + 1)
    else:
        found = data.rfind(needle, 4 * start, 4 * end)
        while found % 4 and found > 0:
            found = data.rfind(needle, 4 * start, found + len(needle) - 1)
    return None if found < 0 else found // 4
