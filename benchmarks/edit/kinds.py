"""The edits that `acmserve bench edit` measures, as prompts. Pure.

              P=500     F=2000               S=3000
    context   [ P ][     F     ][            S            ]      read first, not timed
    append    [ P ][     F     ][            S            ][m N]
    fold      [ P ][m][            S            ][N]             F is folded, m is its marker, N the new message
    deletion  [ P ][            S            ][N]
    two-holes [ P ][m][     S1     ][m][     S2     ][N]         F and S cut out of [F S] in turns
    restore   [ P ][m][ S ][n]  then  [ P ][ F ][ S ][n][N]      a fold is taken back
    insertion [ P ][m][     F     ][            S            ][N]

All kinds read the same context, so it is prefilled once. Every kind and round has markers and messages of its own, so
that none finds in the cache what another one left there. `num_front` tokens of an edited prompt stand in front of the
edit, `num_behind` are old text behind it, which could be reused. The rest is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EditSizes:
    """Tokens of prefix, folded text, suffix, marker, and new message."""

    prefix: int = 500
    folded: int = 2000
    suffix: int = 3000
    marker: int = 20
    new: int = 30

    @property
    def context(self) -> int:
        """Tokens that are read before an edit."""
        return self.prefix + self.folded + self.suffix

    @property
    def edited(self) -> int:
        """New tokens of an edit at most: two markers, and two messages."""
        return 2 * self.marker + 2 * self.new

    @property
    def fresh(self) -> int:
        """New tokens of one kind at most: those of its edit, and of the append that has to compute as many."""
        return 2 * self.edited


QUICK = EditSizes(folded=1000, suffix=1500)


class KindPieces(NamedTuple):
    """A context, cut at the edit, and tokens that stand nowhere in it."""

    prefix: Tokens
    folded: Tokens
    suffix: Tokens
    markers: tuple[Tokens, Tokens]
    messages: tuple[Tokens, Tokens]

    @property
    def context(self) -> Tokens:
        return self.prefix + self.folded + self.suffix


@dataclass(frozen=True, slots=True)
class KindEdit:
    """`turns` are read first. `prompt` is timed, and `append` continues it by as many new tokens as it has itself."""

    turns: tuple[Tokens, ...]
    prompt: Tokens
    num_front: int
    num_behind: int
    append: Tokens = ()

    @property
    def num_new(self) -> int:
        return len(self.prompt) - self.num_front - self.num_behind


def _append(text: KindPieces) -> KindEdit:
    return KindEdit((text.context,), text.context + text.markers[0] + text.messages[0], len(text.context), 0)


def _fold(text: KindPieces) -> KindEdit:
    prompt = text.prefix + text.markers[0] + text.suffix + text.messages[0]
    return KindEdit((text.context,), prompt, len(text.prefix), len(text.suffix))


def _deletion(text: KindPieces) -> KindEdit:
    prompt = text.prefix + text.suffix + text.messages[0]
    return KindEdit((text.context,), prompt, len(text.prefix), len(text.suffix))


def _two_holes(text: KindPieces) -> KindEdit:
    f, s = len(text.folded) // 2, len(text.suffix) // 2
    zone = text.folded + text.suffix
    first, second = zone[f : f + s], zone[len(text.folded) + s :]
    prompt = text.prefix + text.markers[0] + first + text.markers[1] + second + text.messages[0]
    return KindEdit((text.context,), prompt, len(text.prefix), len(first) + len(second))


def _restore(text: KindPieces) -> KindEdit:
    folded = text.prefix + text.markers[0] + text.suffix + text.messages[0]
    prompt = text.context + text.messages[0] + text.messages[1]
    return KindEdit((text.context, folded), prompt, len(text.prefix), len(text.folded) + len(text.suffix))


def _insertion(text: KindPieces) -> KindEdit:
    prompt = text.prefix + text.markers[0] + text.folded + text.suffix + text.messages[0]
    return KindEdit((text.context,), prompt, len(text.prefix), len(text.folded) + len(text.suffix))


KINDS: dict[str, Callable[[KindPieces], KindEdit]] = {
    "append": _append,
    "fold": _fold,
    "deletion": _deletion,
    "two-holes": _two_holes,
    "restore": _restore,
    "insertion": _insertion,
}

UNMARKED = "deletion"
"""The kind whose edit has no new token in front of old text. Two of them differ in their messages alone."""


def plan_edits(text: Sequence[int], number: int, sizes: EditSizes, num_rounds: int) -> list[dict[str, KindEdit]]:
    """One edit of each kind for each round, out of `text`, read as a ring that begins elsewhere for each `number`.

    Raises ValueError when the text is shorter than what is needed: tokens would repeat.
    """
    needed = sizes.context + num_rounds * len(KINDS) * sizes.fresh
    if len(text) < needed:
        raise ValueError(f"the text has {len(text)} tokens, {sizes.context} of context need {needed}")
    start = number * needed % len(text)
    ring = (tuple(text[start:]) + tuple(text[:start]))[:needed]
    starts = iter(range(sizes.context, needed, sizes.fresh))
    return [
        {kind: _plan(ring[: sizes.context], ring[next(starts) :][: sizes.fresh], sizes, kind) for kind in KINDS}
        for _ in range(num_rounds)
    ]


def _plan(context: Tokens, fresh: Tokens, sizes: EditSizes, kind: str) -> KindEdit:
    end, marker, marked = sizes.prefix + sizes.folded, sizes.marker, 2 * sizes.marker
    edit = KINDS[kind](
        KindPieces(
            prefix=context[: sizes.prefix],
            folded=context[sizes.prefix : end],
            suffix=context[end:],
            markers=(fresh[:marker], fresh[marker:marked]),
            messages=(fresh[marked:][: sizes.new], fresh[marked + sizes.new :][: sizes.new]),
        )
    )
    append = edit.prompt + fresh[sizes.edited :][: edit.num_new]
    return KindEdit(edit.turns, edit.prompt, edit.num_front, edit.num_behind, append)
