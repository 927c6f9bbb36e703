"""How fragments lie in one another: they form a tree, and no two of them cross.

    f1  [===================================]       a fragment holds another when its pieces cover all of that
    f2     [==========]      f4 [======]            hidden are the outermost: f1 folded hides f2, f3 and f4,
    f3        [====]                                each of which keeps its own state

The tree is read from the spans, so nothing is stored of it. A new cut that would cross a fragment is laid around that
fragment. The part within becomes a fragment inside it, and the part outside another one beside it. It knows no text.

The pieces of one fragment never overlap. There may be tens of thousands, so what lies around a piece is found by
bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from sys import maxsize
from typing import TypeVar

from acmserve.context.session.fragment import Fragment, Piece
from acmserve.context.transcript.message import Place
from acmserve.errors import IntegrityError

_FROM_START = attrgetter("start", "end")
_HIDDEN = -1
_T = TypeVar("_T")


class PiecesByPlace:
    """Pieces by the text in which they are, ascending, so that it costs a bisection to find one."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        found: dict[Place, list[Piece]] = {}
        for piece in pieces:
            found.setdefault(piece.place, []).append(piece)
        self._texts = {place: _PiecesInText(here) for place, here in found.items()}
        self._num_pieces = sum(map(len, found.values()))

    def covers(self, pieces: Iterable[Piece]) -> bool:
        """Whether every one of `pieces` lies within one of these."""
        return all((here := self._texts.get(piece.place)) is not None and here.covers(piece) for piece in pieces)

    def overlaps(self, pieces: Iterable[Piece]) -> bool:
        """Whether any of `pieces` overlaps one of these."""
        return any((here := self._texts.get(piece.place)) is not None and here.overlaps(piece) for piece in pieces)

    def lie_within(self, outer: Iterable[Piece]) -> bool:
        """Whether every one of these lies within one of `outer`. Neither overlap among themselves."""
        texts = ((piece, self._texts.get(piece.place)) for piece in outer)
        return sum(here.num_within(piece) for piece, here in texts if here is not None) == self._num_pieces

    def overlapping(self, piece: Piece) -> list[Piece]:
        """Those of these that overlap a piece, ascending."""
        here = self._texts.get(piece.place)
        return [] if here is None else here.overlapping(piece)


class _PiecesInText:
    """Pieces of one text. `_ends` has for each the largest end up to it: its own, where none overlap."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = sorted(pieces, key=_FROM_START)
        self._starts = [piece.start for piece in self._pieces]
        self._ends = list(accumulate((piece.end for piece in self._pieces), max))

    def covers(self, piece: Piece) -> bool:
        num_before = bisect_right(self._starts, piece.start)
        return num_before > 0 and piece.end <= self._ends[num_before - 1]

    def overlaps(self, piece: Piece) -> bool:
        num_before = bisect_left(self._starts, piece.end)
        return num_before > 0 and piece.start < self._ends[num_before - 1]

    def num_within(self, piece: Piece) -> int:
        return max(0, bisect_right(self._ends, piece.end) - bisect_left(self._starts, piece.start))

    def overlapping(self, piece: Piece) -> list[Piece]:
        first, last = bisect_right(self._ends, piece.start), bisect_left(self._starts, piece.end)
        return [other for other in self._pieces[first:last] if piece.start < other.end]


def crosses(one: Sequence[Piece], other: Sequence[Piece]) -> bool:
    """Whether two spans overlap, and neither lies within the other."""
    return _crosses(one, PiecesByPlace(other))


def _crosses(pieces: Sequence[Piece], there: PiecesByPlace) -> bool:
    return there.overlaps(pieces) and not there.covers(pieces) and not there.lie_within(pieces)


def crossing(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> list[Fragment]:
    """The fragments that these pieces cross, outer before inner."""
    there = PiecesByPlace(pieces)
    return sorted((f for f in fragments if _crosses(f.pieces, there)), key=num_chars, reverse=True)


def lay_around(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """The pieces as spans that cross no fragment. What lies within a hidden fragment that they cross is left out."""
    crossed = crossing(fragments, pieces)
    inside = _innermost(crossed)
    # Each span is what has the same innermost fragment around it, or none.
    spans: dict[int | None, list[Piece]] = defaultdict(list)
    for piece in pieces:
        start = piece.start
        for other, number in overlapping(inside.get(piece.place, ()), piece):
            spans[None] += [Piece(piece.place, start, other.start)] if start < other.start else []
            start = min(other.end, piece.end)
            spans[number].append(Piece(piece.place, max(other.start, piece.start), start))
        spans[None] += [Piece(piece.place, start, piece.end)] if start < piece.end else []
    return sorted(tuple(span) for number, span in spans.items() if span and number != _HIDDEN)


def _innermost(fragments: Sequence[Fragment]) -> dict[Place, list[tuple[Piece, int]]]:
    """The text in these fragments, ascending and apart: each stretch with the number of the innermost around it.

    The fragments are a tree, outer before inner. What lies within a hidden one is `_HIDDEN`.
    """
    found: dict[Place, list[tuple[Piece, int]]] = defaultdict(list)
    for number, fragment in enumerate(fragments):
        for piece in fragment.pieces:
            found[piece.place].append((piece, number))
    inner: dict[Place, list[tuple[Piece, int]]] = {}
    for place, pieces in found.items():
        here = inner.setdefault(place, [])
        around: list[tuple[int, int]] = []
        at = 0
        pieces.sort(key=lambda item: (item[0].start, -item[0].end, item[1]))
        for piece, number in (*pieces, (Piece(place, maxsize, maxsize), 0)):
            while around and around[-1][0] <= piece.start:
                end, owner = around.pop()
                here += [(Piece(place, at, end), owner)] if at < end else []
                at = end
            here += [(Piece(place, at, piece.start), around[-1][1])] if around and at < piece.start else []
            at = piece.start
            is_hidden = fragments[number].hidden or (bool(around) and around[-1][1] == _HIDDEN)
            around.append((piece.end, _HIDDEN if is_hidden else number))
    return inner


def overlapping(pieces: Sequence[tuple[Piece, _T]], piece: Piece) -> Sequence[tuple[Piece, _T]]:
    """Those of `pieces`, which are ascending and apart in its text, that overlap a piece."""
    first = bisect_right(pieces, piece.start, key=lambda item: item[0].end)
    return pieces[first : bisect_left(pieces, piece.end, lo=first, key=lambda item: item[0].start)]


def minus(pieces: Sequence[Piece], gone: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces without what others cover."""
    there = PiecesByPlace(gone)
    left: list[Piece] = []
    for piece in pieces:
        start = piece.start
        for other in there.overlapping(piece):
            if other.end > start:
                left += [Piece(piece.place, start, other.start)] if start < other.start else []
                start = other.end
        left += [Piece(piece.place, start, piece.end)] if start < piece.end else []
    return tuple(left)


def hiding(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> Fragment | None:
    """The outermost hidden fragment that holds these pieces, None where none does."""
    there = PiecesByPlace(pieces)
    found = [fragment for fragment in fragments if fragment.hidden and there.lie_within(fragment.pieces)]
    return max(found, key=num_chars, default=None)


def outermost(hidden: Iterable[Fragment]) -> dict[Place, list[tuple[Piece, Fragment]]]:
    """The pieces of these fragments that lie within no other of them, by text, ascending."""
    found: dict[Place, list[tuple[Piece, int, Fragment]]] = defaultdict(list)
    for fragment in hidden:
        size = num_chars(fragment)
        for piece in fragment.pieces:
            found[piece.place].append((piece, size, fragment))
    outer: dict[Place, list[tuple[Piece, Fragment]]] = {}
    for place, pieces in found.items():
        here = outer.setdefault(place, [])
        for piece, _, fragment in sorted(pieces, key=lambda item: (item[0].start, -item[0].end, -item[1])):
            if not here or piece.start >= here[-1][0].end:
                here.append((piece, fragment))
    return outer


def check_tree(fragments: Sequence[Fragment]) -> None:
    """Raise `IntegrityError` with the numbers where two fragments cross, or have the same pieces."""
    for fragment in fragments:
        for before, after in pairwise(fragment.pieces):
            if before.overlaps(after):
                raise IntegrityError(f"session: {before} and {after} overlap")
    crossed = first_crossing([fragment.pieces for fragment in fragments])
    if crossed is not None:
        raise IntegrityError(f"session: {crossed[0]} and {crossed[1]} cross")


def first_crossing(spans: Sequence[Sequence[Piece]]) -> tuple[Piece, Piece] | None:
    """A piece each of two spans that cross, or have the same pieces. None where there are none."""
    found: dict[Place, list[tuple[Piece, int]]] = defaultdict(list)
    for number, span in enumerate(spans):
        for piece in span:
            found[piece.place].append((piece, number))
    sizes = [sum(piece.end - piece.start for piece in span) for span in spans]
    inside: dict[int, PiecesByPlace] = {}
    nested: set[tuple[int, int]] = set()
    for pieces in found.values():
        # Each piece against the innermost that is open where it begins, which lies within all others that are.
        around: list[tuple[Piece, int]] = []
        for piece, number in sorted(pieces, key=lambda item: (item[0].start, -item[0].end, -sizes[item[1]])):
            while around and around[-1][0].end <= piece.start:
                around.pop()
            if around and (around[-1][1], number) not in nested:
                outer, holder = around[-1]
                if holder not in inside:
                    inside[holder] = PiecesByPlace(spans[holder])
                if not inside[holder].covers(spans[number]) or spans[holder] == spans[number]:
                    return outer, piece
                nested.add((holder, number))
            around.append((piece, number))
    return None


def num_chars(fragment: Fragment) -> int:
    """Characters of a fragment."""
    return sum(piece.end - piece.start for piece in fragment.pieces)
