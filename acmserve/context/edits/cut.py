"""Cuts visible text into fragments. Any text that the model sees can be cut, however often it was cut before.

    asked for      [............ start marker to end marker ............]    two fragments
    there before        [== f1 ==]              [== f2, folded ==][f3 ......
    made           [======= f4 ========][============ f5 =========][f6 ]     f4 holds f1, f5 holds f2, f6 is in f3

A cut falls between fragments where one ends nearby, and never into hidden text. A fragment that the span crosses is
left as it is (`nesting.py`). A span that is a fragment already keeps its id. Pure: state in, state out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from acmserve.context.edits.find import (
    HIDDEN,
    editable_texts,
    find_all,
    pieces_by_place,
    searched_texts,
    stretches,
    texts_of,
)
from acmserve.context.edits.split import plan_split
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.nesting import crossing, hiding, lay_around, minus, outermost
from acmserve.context.session.state import SessionState, TextReader
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Place
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import Conflict, InvalidRequest, NotFound


@dataclass(frozen=True, slots=True)
class Cut:
    """The result of cutting: the new state and the fragments of the span, in order, one that was there among them."""

    state: SessionState
    fragments: tuple[Fragment, ...]
    num_candidates: int = 1


def cut_between(
    state: SessionState, start_marker: str, end_marker: str, num_fragments: int, role: str, tokenizer: Tokenizer
) -> Cut:
    """Cut the text from `start_marker` to the next `end_marker`, both included, into about equal fragments.

    Both are looked for in visible text, and the first start marker counts. The span may cross messages of the role.
    """
    _check_marker("start_marker", start_marker)
    _check_marker("end_marker", end_marker)
    where = [Place(index, part) for index, part, _ in texts_of(state, role)]
    start, num_candidates = _find_start(state, where, start_marker, role)
    end = _find_end(state, where, start, end_marker, role)
    pieces = _pieces_between(state, where, start, end)
    cut = _cut(state, pieces, num_fragments, role, tokenizer)
    return replace(cut, num_candidates=num_candidates)


def cut_messages(state: SessionState, start: int, end: int, tokenizer: Tokenizer) -> Cut:
    """Make one fragment of all the text of messages `[start, end)`, as `GET .../context` numbers them."""
    if not 0 <= start < end <= len(state.entries):
        raise InvalidRequest(
            "messages", f"[{start}, {end}) is not a range of the {len(state.entries)} messages of this session."
        )
    pieces = tuple(
        Piece(Place(index, part), 0, len(text))
        for index in range(start, end)
        for part, text in editable_texts(state.entries[index].message)
    )
    if not pieces:
        raise InvalidRequest("messages", f"messages [{start}, {end}) have no text that could be hidden.")
    _check_range(state, start, end, pieces)
    state, fragment = _fragment_of(state, pieces, num_original_tokens(state, pieces, tokenizer), "all")
    return Cut(state, (fragment,))


def _check_range(state: SessionState, start: int, end: int, pieces: Sequence[Piece]) -> None:
    """Raise `Conflict` where a range of messages crosses a fragment, or lies within a redaction."""
    crossed = crossing(state.fragments, pieces)
    if crossed:
        entries = [piece.place.entry for fragment in crossed for piece in fragment.pieces]
        wider = f"[{min(start, *entries)}, {max(end - 1, *entries) + 1})"
        raise Conflict(
            "messages",
            f"[{start}, {end}) has a part of fragment {crossed[0].fragment_id} only.",
            f"Name the fragment, or messages {wider}.",
        )
    outer = hiding(state.fragments, pieces)
    if outer is not None and outer.visibility is Visibility.REDACTED:
        raise Conflict("messages", f"[{start}, {end}) was redacted as {outer.fragment_id}; its text is gone.")


def _check_marker(name: str, text: str) -> None:
    if not text.strip():
        raise InvalidRequest(name, "is empty.", "Give the first (or last) words of the text to fragment.")


def _find_start(state: SessionState, where: Sequence[Place], marker_text: str, role: str) -> tuple[Piece, int]:
    """The first visible occurrence of the start marker, and how many visible ones there are."""
    visible, num_visible = _first(state, where, marker_text, *HIDDEN)
    if visible is not None:
        return visible, num_visible
    covered, _ = _first(state, where, marker_text, Visibility.REDACTED)
    if covered is not None:
        raise _hidden(state, "start_marker", covered)
    if _stands_in_text(state, marker_text, role):
        raise Conflict(
            "start_marker",
            "stands only in arguments of a tool call that are no JSON object, or name a key twice.",
            "Such arguments can be searched, and not be cut. Fragment the result of the call instead.",
        )
    raise NotFound("start_marker", f"no message of role '{role}' contains it.", _elsewhere(state, marker_text, role))


def _stands_in_text(state: SessionState, wanted: str, role: str) -> bool:
    """Whether it is found in a text that can only be searched."""
    return any(
        isinstance(part, ArgumentPart) and not part.path and wanted in text
        for _, part, text in texts_of(state, role, searched_texts)
    )


def _hidden(state: SessionState, name: str, found: Piece) -> Conflict:
    """A marker stands in hidden text. It may begin there and end in visible text, or cross two folds."""
    pieces = outermost(fragment for fragment in state.fragments if fragment.hidden)[found.place]
    inside = next(fragment.fragment_id for piece, fragment in pieces if piece.overlaps(found))
    return Conflict(name, f"stands only in hidden fragment {inside}.", f"Restore {inside} first.")


def _elsewhere(state: SessionState, wanted: str, role: str) -> str:
    """Where a marker is that the messages of a role do not have."""
    found, _ = _first(state, [Place(index, part) for index, part, _ in texts_of(state, "all")], wanted, *HIDDEN)
    if found is None:
        return "Copy the marker exactly, or search_context for a part of it."
    return f"A message of role '{state.entries[found.place.entry].message.get('role')}' does: use role 'all'."


def _find_end(state: SessionState, where: Sequence[Place], start: Piece, end_marker: str, role: str) -> Piece:
    """The first visible end marker behind the start marker. Where there is none it may be in it, or be the same."""
    behind = [place for place in where if not place < start.place]
    found, _ = _first(state, behind, end_marker, *HIDDEN, after=start.end)
    if found is None:
        found, _ = _first(state, behind[:1], end_marker, *HIDDEN, after=start.start)
    if found is not None:
        return replace(found, end=max(found.end, start.end)) if found.place == start.place else found
    covered, _ = _first(state, behind, end_marker, Visibility.REDACTED, after=start.end)
    if covered is not None:
        raise _hidden(state, "end_marker", covered)
    before, _ = _first(state, where, end_marker, *HIDDEN)
    raise NotFound(
        "end_marker",
        f"no message of role '{role}' contains it behind the start marker.",
        "Choose words that stand after the start marker." if before is None else "It stands before it: swap the two.",
    )


def _first(
    state: SessionState, where: Sequence[Place], wanted: str, *without: Visibility, after: int | None = None
) -> tuple[Piece | None, int]:
    """The first occurrence outside of fragments in these states, and the number of all.

    With `after` from that character of the first text on, and no other one is counted.
    """
    covered = pieces_by_place(state, *without)
    first, num_found, read = None, 0, TextReader(state)
    for number, place in enumerate(where):
        text = read.text_at(place)
        begin = after if after is not None and number == 0 else 0
        spans = [(max(start, begin), end) for start, end in stretches(len(text), covered.get(place, ())) if begin < end]
        positions, num = find_all(text, wanted, spans, 1)
        num_found += num
        if first is None and positions:
            first = Piece(place, positions[0], positions[0] + len(wanted))
            if after is not None:
                break
    return first, num_found


def _pieces_between(state: SessionState, where: Sequence[Place], start: Piece, end: Piece) -> list[Piece]:
    pieces, read = [], TextReader(state)
    for place in where:
        if not place < start.place and not end.place < place:
            first = start.start if place == start.place else 0
            last = end.end if place == end.place else len(read.text_at(place))
            pieces.append(Piece(place, first, last))
    return pieces


def _cut(state: SessionState, pieces: Sequence[Piece], num_fragments: int, role: str, tokenizer: Tokenizer) -> Cut:
    """Cut what is visible of the pieces, near the ends of the fragments that are there."""
    hidden = [piece for here in pieces_by_place(state, *HIDDEN).values() for piece in here]
    read = TextReader(state)
    visible = [(piece, read.piece_text(piece)) for piece in minus(pieces, hidden)]
    there = state.fragments
    ends = {(f.pieces[0].place, f.pieces[0].start) for f in there} | {
        (f.pieces[-1].place, f.pieces[-1].end) for f in there
    }
    made: list[Fragment] = []
    for run, num_tokens in plan_split(visible, num_fragments, tokenizer, ends):
        for span in lay_around(there, _filled(run, pieces)):
            if any(read.piece_text(piece).strip() for piece in minus(span, hidden)):
                num = num_tokens if span == run else num_original_tokens(state, span, tokenizer)
                state, fragment = _fragment_of(state, span, num, role)
                made.append(fragment)
    return Cut(state, tuple(made))


def num_original_tokens(state: SessionState, pieces: Sequence[Piece], tokenizer: Tokenizer) -> int:
    """Tokens of the original text of these pieces."""
    return sum(count_tokens(tokenizer, text) for text in map(TextReader(state).piece_text, pieces))


def _filled(run: Sequence[Piece], asked: Sequence[Piece]) -> tuple[Piece, ...]:
    """The run with the hidden text between its first piece and its last one."""
    first, last = run[0], run[-1]
    return tuple(
        replace(
            piece,
            start=first.start if piece.place == first.place else piece.start,
            end=last.end if piece.place == last.place else piece.end,
        )
        for piece in asked
        if not piece.place < first.place and not last.place < piece.place
    )


def _fragment_of(
    state: SessionState, pieces: tuple[Piece, ...], num_tokens: int, role: str
) -> tuple[SessionState, Fragment]:
    """The fragment of these pieces: the one that is there, or a new one."""
    for known in state.fragments:
        if known.pieces == pieces:
            return state, known
    fragment_id, state = state.new_id("f")
    fragment = Fragment(fragment_id, role, pieces, num_tokens)
    return replace(state, fragments=(*state.fragments, fragment)), fragment
