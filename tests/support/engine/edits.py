"""Token-level edits of a context, as an agent makes them."""

from __future__ import annotations

import random
from collections.abc import Sequence

Tokens = list[int]


def text(num_tokens: int, seed: object, vocab_size: int = 384) -> Tokens:
    """Random tokens, reproducible, free of the special ids 0 to 2."""
    rng = random.Random(str(seed))
    return [rng.randrange(3, vocab_size) for _ in range(num_tokens)]


def cut(tokens: Sequence[int], start: int, end: int, marker: Sequence[int] = ()) -> Tokens:
    """Replace `[start, end)` by `marker`: a fold with a marker, a deletion without."""
    return [*tokens[:start], *marker, *tokens[end:]]


def insert(tokens: Sequence[int], at: int, new: Sequence[int]) -> Tokens:
    """Put `new` in front of token `at`."""
    return [*tokens[:at], *new, *tokens[at:]]


def swap(tokens: Sequence[int], a: int, b: int, c: int) -> Tokens:
    """Exchange the neighbouring paragraphs `[a, b)` and `[b, c)`."""
    return [*tokens[:a], *tokens[b:c], *tokens[a:b], *tokens[c:]]
