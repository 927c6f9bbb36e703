"""What edits cost the next step, in tokens: one edit, for the model to read, and several together, for the caller.

    rendered   [.......... kept ..........][marker][........ text behind the edit ........][new]
                                            computed   exact: computed     reuse: moved     repair: its head computed

`auto` may compute all of it, and is priced so. The text behind the first change is paid for once, whatever else was
changed behind it. A redaction is never moved: what stands behind it was computed while the erased text was visible.

An estimate from the conversation alone: texts of messages, without the chat template's own tokens. So the same history
gives the same words for ever. What really happened is in the receipt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.render import evicted_entries, hidden_pieces
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Place, texts
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


def edit_cost(state: SessionState, fragment: Fragment, num_shown: int, fidelity: str, tokenizer: Tokenizer) -> EditCost:
    """Cost of an edit of `fragment` that puts `num_shown` tokens in its place. `state` is from before or after it."""
    behind = num_tokens_behind(state, fragment, tokenizer)
    return EditCost(num_shown).with_text(behind, fidelity)


def turn_cost(before: SessionState, after: SessionState, fidelity: str, tokenizer: Tokenizer) -> EditCost:
    """Tokens that the next turn computes and moves because `before` became `after` through edits."""
    shown_before = {fragment.fragment_id: fragment.shown for fragment in before.fragments}
    changed = [f for f in after.fragments if f.shown != shown_before.get(f.fragment_id)]
    if not changed:
        return EditCost(0)
    first = min(changed, key=lambda fragment: fragment.pieces[0])
    num_after = num_tokens_shown(first, tokenizer) + num_tokens_behind(after, first, tokenizer)
    if fidelity in ALL_COMPUTED or any(f.visibility is Visibility.REDACTED for f in changed):
        return EditCost(num_after)
    num_new = sum(num_tokens_shown(fragment, tokenizer) for fragment in changed)
    return EditCost(num_new).with_text(max(0, num_after - num_new), fidelity, len(changed))


def num_tokens_shown(fragment: Fragment, tokenizer: Tokenizer) -> int:
    """Tokens that the model sees of a fragment: its text, or what stands in its place."""
    if fragment.shown is None:
        return fragment.num_tokens
    return sum(count_tokens(tokenizer, text) for text in fragment.shown)


def num_saved(
    before: SessionState, after: SessionState, fragment_ids: Collection[str], tokenizer: Tokenizer
) -> int | None:
    """Tokens that the model sees fewer of these fragments, without markers' template. None: nothing looks different.

    A fragment that is forgotten is shown whole.
    """
    shown_before = {f.fragment_id: f for f in before.fragments if f.fragment_id in fragment_ids}
    now = {f.fragment_id: f for f in after.fragments}
    if all(name in now and now[name].shown == f.shown for name, f in shown_before.items()):
        return None
    return sum(
        num_tokens_shown(f, tokenizer) - (num_tokens_shown(now[name], tokenizer) if name in now else f.num_tokens)
        for name, f in shown_before.items()
    )


def num_tokens_behind(state: SessionState, fragment: Fragment, tokenizer: Tokenizer) -> int:
    """Visible tokens behind the beginning of a fragment, without the fragment itself."""
    first, mine = fragment.pieces[0], frozenset(fragment.pieces)
    hidden = hidden_pieces(state)
    own: dict[Place, list[tuple[Piece, str]]] = defaultdict(list)
    for piece in fragment.pieces:
        own[piece.place].append((piece, ""))
    total, evicted = 0, evicted_entries(state)
    for index in range(first.place.entry, len(state.entries)):
        if index in evicted:
            continue
        for part, text in texts(state.entries[index].message):
            place = Place(index, part)
            if place >= first.place:
                start = first.start if place == first.place else 0
                others = [(piece, shown) for piece, shown in hidden.get(place, []) if piece not in mine]
                total += _num_visible(text, start, [*own[place], *others], tokenizer)
    return total


def _num_visible(text: str, start: int, gone: Sequence[tuple[Piece, str]], tokenizer: Tokenizer) -> int:
    """Tokens of `text[start:]` when the pieces in `gone` are replaced. The text is tokenized as a whole, once."""
    starts = tokenizer.starts(text)
    total = len(starts) - bisect_left(starts, start)
    for piece, shown in gone:
        if piece.start >= start:
            total += count_tokens(tokenizer, shown) - bisect_left(starts, piece.end) + bisect_left(starts, piece.start)
    return total
