"""A transcript that lost its last entries: what of its edits is left.

Edits of earlier text stay, and so do its omissions. A turn of which the answer is gone goes altogether. Nothing of the
last step is left out any more, since its results may have changed with what followed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

from acmserve.context.session.branches.branching import cut_back_branches
from acmserve.context.session.fragment import Fragment, Visibility
from acmserve.context.session.state import PLACED, Author, SessionState, TranscriptEntry
from acmserve.context.transcript.omissions import omissions_before_divergence


def cut_back(state: SessionState, kept: Sequence[TranscriptEntry]) -> SessionState:
    """The state when only its first entries are left, `kept`, which may be in other words: a turn that was cut goes."""
    kept = list(kept)
    answered = {entry.turn for entry in kept if entry.origin is Author.ANSWER}
    while kept and kept[-1].origin is Author.INTERNAL and kept[-1].turn not in answered and kept[-1].turn != PLACED:
        kept.pop()
    limit = len(kept)
    stays = [left for fragment in state.fragments if (left := _left_of(fragment, limit)) is not None]
    cut = replace(
        state,
        entries=tuple(kept),
        fragments=tuple(stays),
        hits=tuple(hit for hit in state.hits if hit.place.entry < limit),
        num_turns=state.num_turns_with(kept),
    )
    if limit == len(state.entries):
        return cut
    omissions = omissions_before_divergence(state.omissions, [entry.message for entry in kept])
    return cut_back_branches(replace(cut, omissions=omissions))


def _left_of(fragment: Fragment, num_entries: int) -> Fragment | None:
    """What remains of a fragment when only the first entries stay: all or nothing. What is redacted stays marked."""
    stays = [piece.place.entry < num_entries for piece in fragment.pieces]
    if all(stays):
        return fragment
    if fragment.visibility is not Visibility.REDACTED or fragment.shown is None or not any(stays):
        return None
    pieces, shown = tuple(compress(fragment.pieces, stays)), tuple(compress(fragment.shown, stays))
    return replace(fragment, pieces=pieces, shown=shown)
