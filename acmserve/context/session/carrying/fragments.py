"""Carries fragments and search results over to entries that have moved or changed.

    old   piece 0 in entry 3 [10, 90)     entry 3 is entry 5 now, and its text is two parts
    new   pieces in entry 5, part 0 [10, 60) and part 1 [0, 30)        shown: the marker, "[f1a2b3 continued]"

All or nothing: a fragment of which a piece is gone is dropped, and told. A redaction keeps what is left of it, since
what it erased stays erased. What stands in the place of a piece stays as it was, to the byte.

It does not know why entries have moved. What was redacted in a changed message finds `redactions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from acmserve.context.alignment.core_text import TextMap
from acmserve.context.session.carrying.record import CHANGED, OVERLAPS, REMOVED, DroppedEdit
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.marker import continued
from acmserve.context.session.nesting import crosses, first_crossing
from acmserve.context.session.state import SearchHit
from acmserve.context.transcript.message import Place

_NUM_NAMED = 5


@dataclass(frozen=True, slots=True)
class Landing:
    """Where an entry stands now. `text_map` is None where its texts are as they were."""

    entry: int
    text_map: TextMap | None = None

    def carry(self, piece: Piece) -> list[Piece]:
        """Where a piece stands now, in several texts perhaps. Nothing where its text is gone."""
        if self.text_map is None:
            return [Piece(Place(self.entry, piece.place.part), piece.start, piece.end)]
        spans = self.text_map.carry((piece.place.part, piece.start, piece.end))
        return [Piece(Place(self.entry, part), start, end) for part, start, end in spans]


Landings = Mapping[int, Landing]


def carry_fragments(
    fragments: Sequence[Fragment], landings: Landings, found: Mapping[str, Sequence[Piece]]
) -> tuple[tuple[Fragment, ...], list[DroppedEdit]]:
    """The fragments where they stand now, and a record of each that is lost.

    `found` has what was redacted in messages that are changed or new, by the fragment's id.
    """
    redacted = {
        fragment.fragment_id: _carry_redacted(fragment, landings, found.get(fragment.fragment_id, ()))
        for fragment in fragments
        if fragment.visibility is Visibility.REDACTED
    }
    anew = [pieces for name, pieces in found.items() if name not in redacted]
    anew += [carried.pieces for carried, _ in redacted.values() if carried is not None]
    others = {
        fragment.fragment_id: _carry(fragment, landings)
        for fragment in fragments
        if fragment.visibility is not Visibility.REDACTED
    }
    spans = [carried.pieces for carried, _ in others.values() if carried is not None]
    is_changed = bool(found) or any(landing.text_map is not None for landing in landings.values())
    # Mostly none cross. Only where some do, they are given out one by one.
    taken = _Taken(anew) if is_changed and first_crossing([*map(tuple, anew), *spans]) is not None else None
    kept: list[Fragment] = []
    dropped: list[DroppedEdit] = []
    for fragment in fragments:
        if fragment.visibility is Visibility.REDACTED:
            carried, reason = redacted[fragment.fragment_id]
        else:
            carried, reason = others[fragment.fragment_id]
            # A redaction that was found again elsewhere may cross what it lay in, though that stands where it stood.
            if carried is not None and taken is not None and (found or _is_mapped(fragment, landings)):
                carried, reason = (carried, reason) if taken.take(carried.pieces) else (None, OVERLAPS)
        if carried is not None:
            kept.append(carried)
        else:
            dropped.append(dropped_fragment(fragment, reason))
    return tuple(kept), dropped


def dropped_fragment(fragment: Fragment, reason: str) -> DroppedEdit:
    """The record of a fragment that is lost."""
    is_redacted = fragment.visibility is Visibility.REDACTED
    return DroppedEdit("redaction" if is_redacted else "fragment", fragment.fragment_id, reason)


def _is_mapped(fragment: Fragment, landings: Landings) -> bool:
    return any(landings[piece.place.entry].text_map is not None for piece in fragment.pieces)


def carry_hits(hits: Sequence[SearchHit], landings: Landings) -> tuple[tuple[SearchHit, ...], list[DroppedEdit]]:
    """The search results where they stand now, and one record of all that are lost."""
    kept: list[SearchHit] = []
    lost: list[str] = []
    for hit in hits:
        landing = landings.get(hit.place.entry)
        pieces = [] if landing is None else landing.carry(Piece(hit.place, hit.start, hit.end))
        if pieces:
            kept.append(replace(hit, place=pieces[0].place, start=pieces[0].start, end=pieces[0].end))
        else:
            lost.append(hit.search_id)
    return tuple(kept), dropped_hits(lost)


def dropped_hits(lost: Sequence[str]) -> list[DroppedEdit]:
    """One record of all search results that are lost."""
    if not lost:
        return []
    named = ", ".join(lost[:_NUM_NAMED]) + (", ..." if len(lost) > _NUM_NAMED else "")
    return [DroppedEdit("search_results", "", f"the texts that {named} ({len(lost)} in all) found are gone.")]


class _Taken:
    """The spans that are given out, none of which crosses another one."""

    def __init__(self, spans: Iterable[Sequence[Piece]]) -> None:
        self._by_place: dict[Place, list[Sequence[Piece]]] = {}
        for pieces in spans:
            self._give_out(pieces)

    def take(self, pieces: Sequence[Piece]) -> bool:
        """Give these out. False, and nothing is, where they cross what is given out, or are that."""
        places = {piece.place for piece in pieces}
        there = {id(other): other for place in places for other in self._by_place.get(place, ())}
        if any(crosses(pieces, other) or pieces == other for other in there.values()):
            return False
        self._give_out(pieces)
        return True

    def _give_out(self, pieces: Sequence[Piece]) -> None:
        given = tuple(pieces)
        for place in {piece.place for piece in given}:
            self._by_place.setdefault(place, []).append(given)


def _carry(fragment: Fragment, landings: Landings) -> tuple[Fragment | None, str]:
    """A fragment where it stands now, the very object where that is where it stood. None and why, where it is lost."""
    found: list[tuple[Piece, str]] = []
    for piece, shown in zip(fragment.pieces, fragment.shown or [""] * len(fragment.pieces), strict=True):
        landing = landings.get(piece.place.entry)
        if landing is None:
            return None, REMOVED
        pieces = landing.carry(piece)
        if not pieces:
            return None, CHANGED
        found += zip(pieces, [shown, *[continued(fragment.fragment_id)] * (len(pieces) - 1)], strict=True)
    return _with_pieces(fragment, found), ""


def _carry_redacted(
    fragment: Fragment, landings: Landings, found_again: Sequence[Piece]
) -> tuple[Fragment | None, str]:
    """What is left of a redaction: its pieces in messages that are as they were, and what was found again."""
    found: list[tuple[Piece, str]] = []
    for piece, shown in zip(fragment.pieces, fragment.shown or (), strict=True):
        landing = landings.get(piece.place.entry)
        if landing is not None and landing.text_map is None:
            found += [(moved, shown) for moved in landing.carry(piece)]
    if found_again:
        first = fragment.shown[0].rstrip("\n") if fragment.shown else continued(fragment.fragment_id)
        found += [
            (piece, continued(fragment.fragment_id) if found or n else first) for n, piece in enumerate(found_again)
        ]
    if not found:
        return None, "the text is no longer in the history. It is cut out again where it comes back."
    return _with_pieces(fragment, found), ""


def _with_pieces(fragment: Fragment, found: list[tuple[Piece, str]]) -> Fragment:
    found = sorted(found)
    pieces = tuple(piece for piece, _ in found)
    if pieces == fragment.pieces:
        return fragment
    shown = None if fragment.shown is None else tuple(text for _, text in found)
    return replace(fragment, pieces=pieces, shown=shown)
