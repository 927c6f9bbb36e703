"""Hostile conversations: what a client can choose to make one step of the scheduler long.

An attack is a handful of numbers, so that it can be drawn, changed a little, and printed. Everything that it sends
follows from them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

CHOICES: dict[str, tuple[Any, ...]] = {
    "alphabet": (2, 3, 30, 900),
    "period": (0, 16, 61, 1024),
    "edit": ("gap", "shuffle", "append", "same", "front", "new"),
    "piece": (24, 33, 40, 100, 1_000, 16_000),
    "num_at_once": (1, 2, 4),
    "fidelity": ("reuse", "repair", "auto", "exact"),
    "forget": (False, False, True),
    "pool_share": (0.3, 0.9, 1.3, 2.0),
    "step_tokens": (2_048, 8_192),
    "again": (False, True),
}
"""What a search may choose from."""


@dataclass(frozen=True)
class Attack:
    """Sources have tokens of an `alphabet`, repeated after `period` tokens (0: never).

    `num_at_once` edits are sent together, each of the session's sources in pieces of `piece` tokens. The pool holds
    `pool_share` of what was served. A step takes `step_tokens` tokens. `again` sends the edits a second time, as an
    append to what was moved.
    """

    seed: int
    alphabet: int
    period: int
    edit: str
    piece: int
    num_at_once: int
    fidelity: str
    forget: bool
    pool_share: float
    step_tokens: int
    again: bool

    @classmethod
    def draw(cls, rng: random.Random) -> Attack:
        """Any attack."""
        return cls(rng.randrange(2**31), **{name: rng.choice(options) for name, options in CHOICES.items()})

    def changed(self, rng: random.Random) -> Attack:
        """The same attack but for one thing."""
        name = rng.choice([field.name for field in fields(self)])
        if name == "seed":
            return replace(self, seed=rng.randrange(2**31))
        return replace(self, **{name: rng.choice(CHOICES[name])})

    def sources(self, num_sources: int, num_tokens: int) -> list[Tokens]:
        """What the session is served first."""
        rng = np.random.default_rng(self.seed)
        drawn = [rng.integers(0, self.alphabet, self.period or num_tokens, dtype=np.int32) for _ in range(num_sources)]
        return [np.resize(tokens, num_tokens) for tokens in drawn]

    def edits(self, sources: list[Tokens], num_tokens: int) -> list[Tokens]:
        """What is sent then, at once."""
        rng = np.random.default_rng(self.seed + 1)
        return [self._edited(rng, sources, num_tokens) for _ in range(self.num_at_once)]

    def _edited(self, rng: np.random.Generator, sources: list[Tokens], num_tokens: int) -> Tokens:
        source = sources[rng.integers(len(sources))].copy()
        if self.edit == "gap":
            source[self.piece - 1 :: self.piece] = 901
        elif self.edit == "append":
            source = np.concatenate([source[: num_tokens // 2], rng.integers(0, 900, num_tokens // 2, dtype=np.int32)])
        elif self.edit == "front":
            source = source[self.piece :]
        elif self.edit == "new":
            source = rng.integers(0, 900, num_tokens, dtype=np.int32)
        elif self.edit == "shuffle":
            starts = rng.integers(0, num_tokens - self.piece, num_tokens // self.piece)
            whose = rng.integers(0, len(sources), len(starts))
            source = np.concatenate(
                [sources[i][start : start + self.piece] for i, start in zip(whose, starts, strict=True)]
            )
        return source[:num_tokens]
