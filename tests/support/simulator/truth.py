"""What every slot ought to hold: the one exact record for each (salt, prefix, token), and the tokens a request yields.

Exactness is decided without trusting a block hash or the scheduler. Each prefix of tokens is a node of a trie. Its
node number is the `origin` of the KV that a stock engine computes for its last token. A salt has a root of its own,
and so has each load of an adapter. KV of another salt or adapter is as foreign as KV of other text.

    root(salt, adapter) --t0--> origin 17 --t1--> origin 18     a record is exact for a reader at position p
                                   \\--t9--> origin 40           iff its origin is the reader's own node at p

Numbers are interned, not hashed, so two prefixes never collide. Number 0 is `MIXED`: KV that was
rotated, or computed while anything not exact was in sight. It equals no node and stays `MIXED` for good, also when a
second rotation undoes the first, because rounding does not.

The model is deterministic: the next token is a function of the last few tokens. So the whole output of a request is
known before it runs, and a script can edit answers that nobody has generated yet. This module knows nothing of vLLM.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

MIXED = 0
OUTPUT_TOKENS = range(900, 913)
CONTEXT_OF_NEXT_TOKEN = 4
FIRST_IMAGE = 10_000
"""Tokens from here on say of which image they are, see `media.py`."""

Owner = tuple[object, ...]
"""Session id, cache salt, how often the session was forgotten, and the adapter: who may read what was moved."""


class Record(NamedTuple):
    """The KV of one token in one slot. `taint` names the owners whose moves it descends from.

    Its keys are turned to `position + shift`. Images shift what stands behind them (`media.py`).
    """

    token: int
    position: int
    origin: int
    taint: frozenset[Owner] = frozenset()
    shift: int = 0


class Truth:
    """The trie of all prefixes that any request of a run has, and the exact record at each node."""

    def __init__(self, mrope: bool = False) -> None:
        self.mrope = mrope
        self._nodes: dict[tuple[int, int], Record] = {}
        self._roots: dict[object, int] = {}
        self._num_nodes = MIXED

    def root(self, *world: object) -> int:
        """Node of the empty prefix in this world: a salt, an adapter."""
        if world not in self._roots:
            self._num_nodes += 1
            self._roots[world] = self._num_nodes
        return self._roots[world]

    def child(self, parent: int, token: int, position: int, shift: int = 0) -> Record:
        """The exact record of `token` at `position` behind the prefix `parent`, one object per prefix."""
        record = self._nodes.get((parent, token))
        if record is None:
            self._num_nodes += 1
            record = self._nodes[parent, token] = Record(token, position, self._num_nodes, shift=shift)
        return record


class Sequence:
    """All tokens of one request, prompt and every token it will ever yield, with their exact records."""

    def __init__(self, truth: Truth, salt: object, prompt: tuple[int, ...], adapter: int | None = None) -> None:
        self.num_prompt_tokens = len(prompt)
        self._truth = truth
        self._exact: list[Record] = []
        self._parent = truth.root(salt, adapter)
        self._shift = 0
        for token in prompt:
            self._append(token)

    def exact(self, position: int) -> Record:
        """The record that a stock engine holds at `position`."""
        while position >= len(self._exact):
            self._append(next_token(tuple(record.token for record in self._exact[-CONTEXT_OF_NEXT_TOKEN:])))
        return self._exact[position]

    def between(self, start: int, end: int) -> list[Record]:
        """The exact records of positions `[start, end)`."""
        if end:
            self.exact(end - 1)
        return self._exact[start:end]

    def token(self, position: int) -> int:
        """Token at `position`. From the prompt's end on it is the one the model samples."""
        return self.exact(position).token

    def _append(self, token: int) -> None:
        record = self._truth.child(self._parent, token, len(self._exact), self._shift)
        if self._truth.mrope:
            self._shift += shift_of(token)
        self._exact.append(record)
        self._parent = record.origin


def is_image(token: int) -> bool:
    """Whether a token of a script stands for an image."""
    return token >= FIRST_IMAGE


def shift_of(token: int) -> int:
    """By how much M-RoPE moves the positions behind a token further than the indices. Differs from image to image."""
    return -(1 + token % 3) if is_image(token) else 0


def next_token(tokens: tuple[int, ...]) -> int:
    """The token that the model samples after `tokens`. There are few values, so that stop tokens come up."""
    tail = ",".join(map(str, tokens[-CONTEXT_OF_NEXT_TOKEN:])).encode()
    return OUTPUT_TOKENS[zlib.crc32(tail) % len(OUTPUT_TOKENS)]


def answer(prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """The first `num_tokens` tokens that a request with this prompt yields."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tuple(tokens[-CONTEXT_OF_NEXT_TOKEN:])))
    return tuple(tokens[len(prompt) :])
