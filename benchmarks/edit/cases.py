"""The prompts of `acmserve bench edit`: which text is kept, folded, inserted and new. Pure.

              P=500     F=2000               S=3000                 M=20, N=30
    history   [ P ][     F     ][            S            ]                            read first, not timed
    fold      [ P ][M][            S            ][N]                                   M and N are new
    stock     the same two prompts, without a session, in an engine without acmserve
    history2  [ P ][  F1 ][     S1     ][  F2 ][     S2     ]
    two holes [ P ][M][     S1     ][M][     S2     ][N]                               M, M and N are new
    append    [ P ][m][            S            ]  then  + [M+N new tokens]            the floor of `fold`
    append 2  the same, then other [M+M+N new tokens]                                  the floor of `two holes`

Every repetition reads other text (the bundled conversation, begun elsewhere) under other salts, so nothing is found
in a cache that an earlier repetition filled. Each has several rounds with their own markers and messages: a round is
short, its cases follow each other closely, and what the machine does meanwhile hits all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

Tokens = tuple[int, ...]
_STRIDE = 397


@dataclass(frozen=True, slots=True)
class EditSizes:
    """Tokens of prefix, folded text, suffix, marker, and new message; rounds of one repetition."""

    prefix: int = 500
    folded: int = 2000
    suffix: int = 3000
    marker: int = 20
    new: int = 30
    rounds: int = 3

    @property
    def needed(self) -> int:
        """Tokens of text that one repetition takes without using any twice."""
        return self.prefix + self.folded + self.suffix + self.marker + self.rounds * self.round

    @property
    def round(self) -> int:
        """New tokens of one round: three markers and a message."""
        return 3 * self.marker + self.new

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
class Round:
    """The four cases that are timed right after each other."""

    append: EditCase
    fold: EditCase
    append_two: EditCase
    two_holes: EditCase


@dataclass(frozen=True, slots=True)
class Repetition:
    """The rounds of one repetition, and the key that separates its caches from the others'."""

    key: str
    num_suffix: int
    rounds: tuple[Round, ...]


def plan_repetition(text: Sequence[int], number: int, sizes: EditSizes) -> Repetition:
    """Cut one repetition out of `text`, which is read as a ring beginning at another token each time.

    Raises ValueError when the text is shorter than `sizes.needed`: tokens would repeat.
    """
    if len(text) < sizes.needed:
        raise ValueError(f"the text has {len(text)} tokens, a repetition needs {sizes.needed}")
    start = number * _STRIDE % len(text)
    ring = tuple(text[start:]) + tuple(text[:start])
    old, rest = ring[: sizes.prefix + sizes.folded + sizes.suffix], ring[sizes.prefix + sizes.folded + sizes.suffix :]
    marker, rest = rest[: sizes.marker], rest[sizes.marker :]
    news = [rest[index * sizes.round : (index + 1) * sizes.round] for index in range(sizes.rounds)]
    return Repetition(f"bench-{number}", sizes.suffix, tuple(_plan_round(old, marker, new, sizes) for new in news))


def _plan_round(old: Tokens, marker: Tokens, new: Tokens, sizes: EditSizes) -> Round:
    prefix, folded, suffix = old[: sizes.prefix], old[sizes.prefix : -sizes.suffix], old[-sizes.suffix :]
    half_f, half_s = sizes.folded // 2, sizes.suffix // 2
    first, second, third = (new[index * sizes.marker : (index + 1) * sizes.marker] for index in range(3))
    message = new[3 * sizes.marker :]
    edited = prefix + marker + suffix
    return Round(
        append=EditCase(edited, edited + message + first, sizes.marker + sizes.new),
        fold=EditCase(old, prefix + first + suffix + message, sizes.marker + sizes.new),
        append_two=EditCase(edited, edited + second + message + third, 2 * sizes.marker + sizes.new),
        two_holes=EditCase(
            prefix + folded[:half_f] + suffix[:half_s] + folded[half_f:] + suffix[half_s:],
            prefix + first + suffix[:half_s] + second + suffix[half_s:] + message,
            2 * sizes.marker + sizes.new,
        ),
    )
