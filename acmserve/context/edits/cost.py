"""What edits cost the next step, in tokens: one edit, for the model to read, and several together, for the caller.

    rendered   [.......... kept ..........][marker][........ text behind the edit ........][new]
                                            computed   exact: computed     reuse: moved     repair: its head computed

`auto` may compute all of it, and is priced so. The text behind the first change is paid for once, whatever else was
changed behind it. A redaction is never moved: what stands behind it was computed while the erased text was visible.

An estimate from the conversation alone: texts of messages and of calls' arguments, without the chat template's own
tokens. So the same history gives the same words for ever. Arguments count as JSON writes them, with their escapes. What
really happened is in the receipt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from acmserve.context.alignment.core_text import code_points
from acmserve.context.edits.find import editable_texts
from acmserve.context.edits.steps import Steps, result_of
from acmserve.context.session import marker
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.nesting import overlapping
from acmserve.context.session.render import EvictedTexts, hidden_pieces
from acmserve.context.session.state import SessionState, TextReader
from acmserve.context.transcript.call_arguments import ArgumentPart, as_json, written_text
from acmserve.context.transcript.message import Place
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens

ALL_COMPUTED = ("exact", "auto")
"""Fidelities that may compute all text behind an edit."""
REPAIRED_HEAD_TOKENS = 128
"""What `repair` computes of a moved piece by default."""


@dataclass(frozen=True, slots=True)
class EditCost:
    """Tokens that the next step computes or moves because of an edit. The new message is not counted."""

    num_computed: int
    num_moved: int = 0

    def with_text(self, num_tokens: int, fidelity: str, num_pieces: int = 1) -> EditCost:
        """With unchanged text behind the edit, in `num_pieces` that are moved where the fidelity moves."""
        num_anew = num_tokens if fidelity in ALL_COMPUTED else 0
        if fidelity == "repair":
            num_anew = min(num_tokens, num_pieces * REPAIRED_HEAD_TOKENS)
        return EditCost(self.num_computed + num_anew, self.num_moved + num_tokens - num_anew)

    def __str__(self) -> str:
        moved = f" and moves about {self.num_moved:,}" if self.num_moved else ""
        return f"recomputes about {self.num_computed:,} tokens{moved}"


@dataclass(frozen=True, slots=True)
class EditEffect:
    """What edits do to the next prompt: tokens that it has fewer (or more, below 0), and those that the edits cost."""

    num_saved: int
    cost: EditCost


def effect_of(before: SessionState, after: SessionState, fidelity: str, tokenizer: Tokenizer) -> EditEffect:
    """What the next turn saves, computes and moves because `before` became `after` through edits.

    Both are read as they are shown. So folds in folds, and folds that share a marker, are counted once.
    """
    return result_of(effect_steps(before, after, fidelity, tokenizer))


def effect_steps(before: SessionState, after: SessionState, fidelity: str, tokenizer: Tokenizer) -> Steps[EditEffect]:
    """What `effect_of` says, text by text: everything behind the first change is counted."""
    old, new = ShownTexts(before, tokenizer), ShownTexts(after, tokenizer)
    spans = _changed_spans(old, new)
    if not spans:
        return EditEffect(0, EditCost(0))
    num_old = yield from old.count_steps(spans)
    num_new = yield from new.count_steps(spans)
    num_saved = num_old - num_new
    yield from new.reach(spans[0].place.entry + 1)
    num_after = new.num_tokens_from(spans[0])
    erased = {f.fragment_id for f in after.fragments if f.visibility is Visibility.REDACTED} - {
        f.fragment_id for f in before.fragments if f.visibility is Visibility.REDACTED
    }
    if fidelity in ALL_COMPUTED or erased:
        return EditEffect(num_saved, EditCost(num_after))
    return EditEffect(num_saved, EditCost(num_new).with_text(num_after - num_new, fidelity, len(spans)))


def num_saved_by(
    before: SessionState, after: SessionState, tokenizer: Tokenizer, evictions: KnownEvictions | None = None
) -> int:
    """Tokens that the next prompt has fewer because `before` became `after`. It looks at what has changed only."""
    old, new = ShownTexts(before, tokenizer, evictions), ShownTexts(after, tokenizer, evictions)
    spans = _changed_spans(old, new)
    return sum(map(old.num_tokens, spans)) - sum(map(new.num_tokens, spans))


def fold_costs(
    state: SessionState, fragments: Sequence[Fragment], suite: str, fidelity: str, tokenizer: Tokenizer
) -> list[EditCost]:
    """What the fold of each of these fragments, by itself, would cost."""
    shown = ShownTexts(state, tokenizer)
    costs = []
    for fragment in fragments:
        markers = marker.folded(fragment.fragment_id, fragment.num_tokens, len(fragment.pieces), suite)
        num_own = sum(map(shown.num_tokens, fragment.pieces))
        behind = shown.num_tokens_from(fragment.pieces[0]) - num_own
        places = (piece.place for piece in fragment.pieces)
        num_shown = sum(_num_written(tokenizer, text, at) for text, at in zip(markers, places, strict=True))
        costs.append(EditCost(num_shown).with_text(behind, fidelity))
    return costs


def num_tokens_shown(state: SessionState, fragment: Fragment, tokenizer: Tokenizer) -> int:
    """Tokens that the model sees of a fragment: its text, or what stands in its place."""
    shown = ShownTexts(state, tokenizer)
    return sum(map(shown.num_tokens, fragment.pieces))


class KnownEvictions:
    """What an eviction took out of a session, for several edits of it. It is read anew where an edit changed that."""

    def __init__(self) -> None:
        self._state: SessionState | None = None
        self._evicted = EvictedTexts()

    def of(self, state: SessionState) -> EvictedTexts:
        """The texts that are not seen. Only the messages say so, and the omissions."""
        known = self._state
        if known is None or known.entries is not state.entries or known.omissions is not state.omissions:
            self._state, self._evicted = state, EvictedTexts.of(state)
        return self._evicted


class ShownTexts:
    """The texts of a conversation as the model sees them, counted. Each original text is tokenized as a whole, once."""

    def __init__(self, state: SessionState, tokenizer: Tokenizer, evictions: KnownEvictions | None = None) -> None:
        self._state, self._tokenizer = state, tokenizer
        self.texts = TextReader(state)
        self.hidden = hidden_pieces(state)
        self.evicted = (evictions or KnownEvictions()).of(state)
        self._starts: dict[Place, Sequence[int]] = {}
        self._to_end = [0]

    def num_tokens(self, span: Piece) -> int:
        """Tokens shown in a span. A marker counts where what it stands for begins."""
        if span.place in self.evicted:
            return 0
        text = self.texts.text_at(span.place)
        starts = self._starts_at(span.place)
        is_whole = span.start == 0 and span.end == len(text)
        total = len(starts) if is_whole else bisect_left(starts, span.end) - bisect_left(starts, span.start)
        for piece, shown in overlapping(self.hidden.get(span.place, ()), span):
            first, last = max(piece.start, span.start), min(piece.end, span.end)
            total -= bisect_left(starts, last) - bisect_left(starts, first)
            total += _num_written(self._tokenizer, shown, span.place) if piece.start >= span.start else 0
        return total

    def count_steps(self, spans: Sequence[Piece]) -> Steps[int]:
        """Tokens shown in these spans, one by one."""
        num = 0
        for span in spans:
            num += self.num_tokens(span)
            yield
        return num

    def num_tokens_from(self, first: Piece) -> int:
        """Tokens shown from the beginning of a span to the end of the conversation."""
        entry = first.place.entry
        here = sum(
            self.num_tokens(Piece(Place(entry, part), first.start if part == first.place.part else 0, len(text)))
            for part, text in editable_texts(self._state.entries[entry].message)
            if not Place(entry, part) < first.place
        )
        return here + self.num_tokens_from_entry(entry + 1)

    def _starts_at(self, place: Place) -> Sequence[int]:
        """Where each token of a text begins, as the template writes it: in arguments as a JSON string."""
        if place not in self._starts:
            text = self.texts.text_at(place)
            is_argument = isinstance(place.part, ArgumentPart)
            self._starts[place] = _json_starts(self._tokenizer, text) if is_argument else self._tokenizer.starts(text)
        return self._starts[place]

    def num_tokens_from_entry(self, entry: int) -> int:
        """Tokens shown from an entry to the end of the conversation. Nothing in front of it is looked at."""
        for _ in self.reach(entry):
            pass
        return self._to_end[len(self._state.entries) - entry]

    def reach(self, entry: int) -> Iterator[None]:
        """Count from the end of the conversation to an entry, message by message."""
        for index in range(len(self._state.entries) - len(self._to_end), entry - 1, -1):
            written = editable_texts(self._state.entries[index].message)
            num = sum(self.num_tokens(Piece(Place(index, part), 0, len(text))) for part, text in written)
            self._to_end.append(self._to_end[-1] + num)
            yield


def _num_written(tokenizer: Tokenizer, text: str, place: Place) -> int:
    """Tokens of what stands at a place, as the template writes it."""
    return count_tokens(tokenizer, written_text(text, place.part))


def _json_starts(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    """The characters of `text` in which the tokens of its JSON string begin. Several may begin in one."""
    written = as_json(text)
    starts = tokenizer.starts(written)
    if len(written) == len(text):
        return starts
    widths = np.ones(len(text), np.int64)
    special = np.flatnonzero((codes := code_points(text)) < ord(" "))
    widths[special] = [len(as_json(chr(code))) for code in codes[special]]
    widths[np.isin(codes, [ord('"'), ord("\\")])] = 2
    found: list[int] = (np.searchsorted(np.cumsum(widths), np.asarray(starts), side="right")).tolist()
    return found


def _changed_spans(old: ShownTexts, new: ShownTexts) -> list[Piece]:
    """Where something else is shown than before, ascending and disjoint, without what an eviction took out."""
    changed = [
        piece
        for place in {*old.hidden, *new.hidden}
        if old.hidden.get(place) != new.hidden.get(place) and place not in new.evicted
        for piece, _ in {*old.hidden.get(place, ())} ^ {*new.hidden.get(place, ())}
    ]
    spans: list[Piece] = []
    for piece in sorted(changed):
        if spans and spans[-1].overlaps(piece):
            spans[-1] = replace(spans[-1], end=max(spans[-1].end, piece.end))
        else:
            spans.append(piece)
    return spans
