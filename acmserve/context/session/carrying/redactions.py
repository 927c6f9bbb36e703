"""Cuts what was redacted out of messages that a client sends in other words, and marks the place.

    sent      "My key is hunter2-hunter2, use it. <reminder>"      the session knows digests of "hunter2-hunter2"
    entry     "My key is ................, use it. <reminder>"     the fragment of the redaction has a piece there again

A message that was recognised keeps the words that the session has, so only changed and new ones are searched. The
digest of such an entry is that of the client's message, so that it is recognised the next time. Texts are searched, as
they are redacted: neither the arguments of calls nor fields of reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acmserve.context.alignment.core_text import CoreText, Span
from acmserve.context.alignment.likeness import GONE
from acmserve.context.alignment.redacted_text import RedactedIndex, RedactedText
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.marker import redacted as redacted_marker
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message, Place, with_texts


@dataclass(frozen=True, slots=True)
class CutMessage:
    """A message without what was redacted, and where that stood: the fragment's id and the span of each piece."""

    message: Message
    found: tuple[tuple[str, Span], ...] = ()


def cut_redacted(message: Message, redacted: RedactedIndex, in_place: frozenset[str] = frozenset()) -> CutMessage:
    """The message without what was redacted, the very object where there is none of it.

    `in_place` are the redactions of the message that it stands for.
    """
    if not redacted:
        return CutMessage(message)
    text = CoreText(message)
    spans = [
        (found.fragment_id, span)
        for found in redacted.find(text, in_place)
        for span in text.spans(found.start, found.end)
    ]
    if not spans:
        return CutMessage(message)
    changed = dict(text.texts)
    for _, (part, start, end) in spans:
        changed[part] = changed[part][:start] + GONE * (end - start) + changed[part][end:]
    return CutMessage(with_texts(message, changed), tuple(spans))


def redactions_at(state: SessionState) -> dict[int, frozenset[str]]:
    """The redactions of each entry that has some, by their fragments' ids."""
    found: dict[int, set[str]] = {}
    for fragment in state.fragments:
        if fragment.visibility is Visibility.REDACTED:
            for piece in fragment.pieces:
                found.setdefault(piece.place.entry, set()).add(fragment.fragment_id)
    return {entry: frozenset(ids) for entry, ids in found.items()}


def found_pieces(cuts: Mapping[int, CutMessage]) -> dict[str, list[Piece]]:
    """What was found in the entries of a new history, by the fragment's id, in order."""
    pieces: dict[str, list[Piece]] = {}
    for entry in sorted(cuts):
        for fragment_id, (part, start, end) in cuts[entry].found:
            pieces.setdefault(fragment_id, []).append(Piece(Place(entry, part), start, end))
    return pieces


def found_anew(
    fragments: Sequence[Fragment], found: Mapping[str, Sequence[Piece]], redacted: Sequence[RedactedText]
) -> tuple[Fragment, ...]:
    """Fragments of redactions that the history had lost, and that came again."""
    known = {fragment.fragment_id for fragment in fragments}
    sealed = {text.fragment_id: text for text in reversed(redacted)}
    return tuple(
        Fragment(
            fragment_id,
            sealed[fragment_id].role,
            tuple(pieces),
            sealed[fragment_id].num_tokens,
            Visibility.REDACTED,
            redacted_marker(fragment_id, sealed[fragment_id].num_tokens, len(pieces)),
        )
        for fragment_id, pieces in found.items()
        if fragment_id not in known
    )
