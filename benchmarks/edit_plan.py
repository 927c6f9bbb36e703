"""The prompts of `acmserve bench edit`: which text is kept, folded, inserted and new. Pure.

              P=500     F=2000               S=3000                 M=20, N=30
    history   [ P ][     F     ][            S            ]                            read first, not timed
    fold      [ P ][M][            S            ][N]                                   M and N are new
    stock     the same two prompts, without a session, in an engine without acmserve
    history2  [ P ][  F1 ][     S1     ][  F2 ][     S2     ]
    two holes [ P ][M][     S1     ][M][     S2     ][N]                               M, M and N are new
    append    [ P ][M][            S            ]  then  + [M+N new tokens]            the floor of `fold`
    append 2  the same, then other [M+M+N new tokens]                                  the floor of `two holes`

Every repetition reads other text (the bundled conversation, begun elsewhere) under other salts, so nothing is found
in a cache that an earlier repetition filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

Tokens = tuple[int, ...]
_STRIDE = 397


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of prefix, folded text, suffix, marker, and new message."""

    prefix: int = 500
    folded: int = 2000
    suffix: int = 3000
    marker: int = 20
    new: int = 30

    @property
    def needed(self) -> int:
        """Tokens of text that one repetition takes without using any twice."""
        return self.prefix + self.folded + self.suffix + 3 * self.marker + self.new

    def as_dict(self) -> dict[str, int]:
        """For reports."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EditCase:
    """`history` is read first; `prompt` is timed; `num_new` of its tokens stand in no history."""

    history: Tokens
    prompt: Tokens
    num_new: int


@dataclass(frozen=True, slots=True)
class Repetition:
    """All cases of one repetition, and the key that separates its caches from the others'."""

    key: str
    num_suffix: int
    fold: EditCase
    two_holes: EditCase
    append: EditCase
    append_two: EditCase


def plan_repetition(text: Sequence[int], number: int, sizes: Sizes) -> Repetition:
    """Cut one repetition out of `text`, which is read as a ring beginning at another token each time.

    Raises ValueError when the text is shorter than `sizes.needed`: tokens would repeat.
    """
    if len(text) < sizes.needed:
        raise ValueError(f"the text has {len(text)} tokens, a repetition needs {sizes.needed}")
    start = number * _STRIDE % len(text)
    ring = tuple(text[start:]) + tuple(text[:start])
    prefix, rest = ring[: sizes.prefix], ring[sizes.prefix :]
    folded, rest = rest[: sizes.folded], rest[sizes.folded :]
    suffix, rest = rest[: sizes.suffix], rest[sizes.suffix :]
    markers = rest[: sizes.marker], rest[sizes.marker : 2 * sizes.marker]
    spare = rest[2 * sizes.marker : 3 * sizes.marker]
    new = rest[3 * sizes.marker : 3 * sizes.marker + sizes.new]
    half_f, half_s = sizes.folded // 2, sizes.suffix // 2
    edited = prefix + markers[0] + suffix
    return Repetition(
        key=f"bench-{number}",
        num_suffix=sizes.suffix,
        fold=EditCase(prefix + folded + suffix, edited + new, sizes.marker + sizes.new),
        two_holes=EditCase(
            prefix + folded[:half_f] + suffix[:half_s] + folded[half_f:] + suffix[half_s:],
            prefix + markers[0] + suffix[:half_s] + markers[1] + suffix[half_s:] + new,
            2 * sizes.marker + sizes.new,
        ),
        append=EditCase(edited, edited + new + markers[1], sizes.marker + sizes.new),
        append_two=EditCase(edited, edited + markers[1] + new + spare, 2 * sizes.marker + sizes.new),
    )
