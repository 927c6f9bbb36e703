"""How fragments lie in one another: they form a tree, and no two of them cross.

    f1  [===================================]       a fragment holds another when its pieces cover all of that
    f2     [==========]      f4 [======]            hidden are the outermost: f1 folded hides f2, f3 and f4,
    f3        [====]                                each of which keeps its own state

The tree is read from the spans, so nothing is stored of it. A new cut that would cross a fragment is laid around it:
what lies within becomes a fragment inside it, what lies outside another one beside it. It knows no text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from acmserve.context.session.fragment import Fragment, Piece
from acmserve.context.transcript.message import Place
from acmserve.errors import IntegrityError


def holds(outer: Sequence[Piece], inner: Sequence[Piece]) -> bool:
    """Whether every piece of `inner` lies within a piece of `outer`."""
    if len(outer) == len(inner) == 1:
        return outer[0].covers(inner[0])
    there = by_place(outer)
    return all(any(piece.covers(mine) for piece in there.get(mine.place, ())) for mine in inner)


def crosses(one: Sequence[Piece], other: Sequence[Piece]) -> bool:
    """Whether two spans overlap, and neither lies within the other."""
    return _touches(one, by_place(other)) and not holds(one, other) and not holds(other, one)


def _touches(pieces: Sequence[Piece], there: Mapping[Place, Sequence[Piece]]) -> bool:
    return any(piece.overlaps(other) for piece in pieces for other in there.get(piece.place, ()))


def crossing(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> list[Fragment]:
    """The fragments that these pieces cross, outer before inner."""
    there = by_place(pieces)
    found = [f for f in fragments if _touches(f.pieces, there) and crosses(f.pieces, pieces)]
    return sorted(found, key=num_chars, reverse=True)


def lay_around(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """The pieces as spans that cross no fragment. What lies within a hidden fragment that they cross is left out."""
    spans = [tuple(pieces)]
    for fragment in crossing(fragments, pieces):
        outside = [minus(span, fragment.pieces) for span in spans]
        inside = [] if fragment.hidden else [_within(span, fragment.pieces) for span in spans]
        spans = [span for span in (*outside, *inside) if span]
    return sorted(spans)


def minus(pieces: Sequence[Piece], gone: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces without what others cover."""
    there = by_place(gone)
    left: list[Piece] = []
    for piece in pieces:
        start = piece.start
        for other in sorted(there.get(piece.place, ())):
            if other.end > start and other.start < piece.end:
                left += [Piece(piece.place, start, other.start)] if start < other.start else []
                start = other.end
        left += [Piece(piece.place, start, piece.end)] if start < piece.end else []
    return tuple(left)


def _within(pieces: Sequence[Piece], kept: Sequence[Piece]) -> tuple[Piece, ...]:
    there = by_place(kept)
    return tuple(
        Piece(piece.place, max(piece.start, other.start), min(piece.end, other.end))
        for piece in pieces
        for other in sorted(there.get(piece.place, ()))
        if piece.overlaps(other)
    )


def hiding(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> Fragment | None:
    """The outermost hidden fragment that holds these pieces, None where none does."""
    found = [fragment for fragment in fragments if fragment.hidden and holds(fragment.pieces, pieces)]
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
    found: dict[Place, list[tuple[Piece, int]]] = defaultdict(list)
    for number, fragment in enumerate(fragments):
        for before, after in pairwise(fragment.pieces):
            if before.overlaps(after):
                raise IntegrityError(f"session: {before} and {after} overlap")
        for piece in fragment.pieces:
            found[piece.place].append((piece, number))
    sizes = [num_chars(fragment) for fragment in fragments]
    nested: set[tuple[int, int]] = set()
    for pieces in found.values():
        # Each piece against the innermost that is open where it begins, which lies within all others that are.
        around: list[tuple[Piece, int]] = []
        for piece, number in sorted(pieces, key=lambda item: (item[0].start, -item[0].end, -sizes[item[1]])):
            while around and around[-1][0].end <= piece.start:
                around.pop()
            if around and (around[-1][1], number) not in nested:
                outer, holder = around[-1]
                mine, others = fragments[number].pieces, fragments[holder].pieces
                if not holds(others, mine) or others == mine:
                    raise IntegrityError(f"session: {outer} and {piece} cross")
                nested.add((holder, number))
            around.append((piece, number))


def num_chars(fragment: Fragment) -> int:
    """Characters of a fragment."""
    return sum(piece.end - piece.start for piece in fragment.pieces)


def by_place(pieces: Iterable[Piece]) -> dict[Place, list[Piece]]:
    """The pieces by the text in which they are."""
    found: dict[Place, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.place, []).append(piece)
    return found
