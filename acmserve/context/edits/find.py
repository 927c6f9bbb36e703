"""Finds an exact text in parts of a long one: the first few positions and the number of all.

    text        ....[hidden].............[hidden].....
    stretches   [==)        [===========)        [===)      a match lies within one stretch; matches do not overlap

Everything runs in `str.find` and `str.count`, which are linear whatever is searched for. No object is made for a match
that nobody reads, so that one letter in a million is found as fast as a sentence. It knows neither case nor meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from acmserve.context.session.fragment import Piece, Visibility
from acmserve.context.session.nesting import outermost
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import FOLDABLE_ROLES, Place, texts

HIDDEN = (Visibility.FOLDED, Visibility.SUMMARIZED, Visibility.REDACTED)
FoundText = tuple[int, int | None, str]
"""Entry, part (None where the content is a string) and the text there: a `Place` with its text."""


def texts_of(state: SessionState, role: str) -> Iterator[FoundText]:
    """The texts of a role, in order. `all` is every role but the instructions (system, developer)."""
    roles = FOLDABLE_ROLES if role == "all" else (role,)
    for index, entry in enumerate(state.entries):
        if entry.message.get("role") in roles:
            for part, text in texts(entry.message):
                yield index, part, text


def pieces_by_place(state: SessionState, *kinds: Visibility) -> dict[Place, list[Piece]]:
    """The outermost pieces of the fragments in one of these states, by text, ascending and disjoint."""
    found = outermost(fragment for fragment in state.fragments if fragment.visibility in kinds)
    return {place: [piece for piece, _ in pieces] for place, pieces in found.items()}


def stretches(num_chars: int, without: Iterable[Piece]) -> list[tuple[int, int]]:
    """`[0, num_chars)` without these pieces, which are ascending and disjoint."""
    found, position = [], 0
    for piece in without:
        if position < piece.start:
            found.append((position, piece.start))
        position = piece.end
    if position < num_chars:
        found.append((position, num_chars))
    return found


def find_all(text: str, wanted: str, where: Sequence[tuple[int, int]], limit: int) -> tuple[list[int], int]:
    """The first `limit` positions of `wanted` (not empty) within `where`, and the number of all."""
    positions: list[int] = []
    num_further = 0
    for start, end in where:
        begin = start
        while len(positions) < limit and (position := text.find(wanted, begin, end)) >= 0:
            positions.append(position)
            begin = position + len(wanted)
        if len(positions) == limit:
            num_further += text.count(wanted, begin, end)
    return positions, len(positions) + num_further
