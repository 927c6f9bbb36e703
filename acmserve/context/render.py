"""What the model sees: the transcript with the hidden pieces replaced by what stands in their place.

    original   "Read this:\n[line 1 ......... line 400]\nWhat is it?"
    rendered   "Read this:\n[folded f1a2b3: ... hidden; ...]\nWhat is it?"

Messages are neither added, removed nor reordered, and a message without a hidden piece is the very object that the
client sent: without an edit, what the model sees is what the client wrote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from acmserve.context.fragment import Piece
from acmserve.context.message import Message, Place, with_texts
from acmserve.context.state import SessionState


def render(state: SessionState) -> list[Message]:
    """The messages that the model sees, one for each entry."""
    changed: dict[int, dict[int | None, str]] = defaultdict(dict)
    for place, hidden in hidden_pieces(state).items():
        changed[place.entry][place.part] = splice(state.text_at(place), hidden)
    return [
        with_texts(entry.message, changed[index]) if index in changed else entry.message
        for index, entry in enumerate(state.entries)
    ]


def visible_text(state: SessionState, place: Place) -> str:
    """One text as the model sees it."""
    return splice(state.text_at(place), hidden_pieces(state).get(place, []))


def splice(text: str, hidden: Sequence[tuple[Piece, str]]) -> str:
    """`text` with every piece, ascending and disjoint, replaced by its marker."""
    parts, position = [], 0
    for piece, shown in hidden:
        parts += [text[position : piece.start], shown]
        position = piece.end
    return "".join([*parts, text[position:]])


def hidden_pieces(state: SessionState) -> dict[Place, list[tuple[Piece, str]]]:
    """The pieces that are not visible, by text, ascending, each with what stands in its place."""
    found: dict[Place, list[tuple[Piece, str]]] = defaultdict(list)
    for fragment in state.fragments:
        if fragment.shown is not None:
            for piece, shown in zip(fragment.pieces, fragment.shown, strict=True):
                found[piece.place].append((piece, shown))
    return {place: sorted(pieces) for place, pieces in found.items()}
