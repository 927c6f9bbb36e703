"""Edits that were accepted and wait for their moment: hidden for whoever asks, and still shown in the prompt.

    fold f1       fold f2                       commit
    f1 waits      f1, f2 wait                   both markers stand in the prompt
    [ f1 text ][ f2 text ][ rest ]   ------>    [m][m][ rest, computed once ]

Tools, searches and costs see what was accepted. Only hiding waits, for a text that is shown again is wanted at once.
The fold of a summary takes effect at once, for its text is gone from the prompt, and one marker follows another.
A redaction never waits. Pure. It does not know when the moment is (`edits/commit.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from acmserve.context.session.fragment import Fragment, Visibility
from acmserve.context.session.state import SessionState


def waiting(state: SessionState) -> tuple[Fragment, ...]:
    """The fragments that are hidden and still stand in the prompt, front to back."""
    return tuple(sorted((f for f in state.fragments if f.waits), key=lambda fragment: fragment.pieces))


def committed(state: SessionState, fragment_ids: Collection[str] | None = None) -> SessionState:
    """The state when these edits have taken effect in the prompt, None for all. The very state where none waits."""
    due = {f.fragment_id for f in waiting(state) if fragment_ids is None or f.fragment_id in fragment_ids}
    if not due:
        return state
    return replace(
        state, fragments=tuple(replace(f, waits=False) if f.fragment_id in due else f for f in state.fragments)
    )


def waiting_behind(before: SessionState, accepted: SessionState) -> SessionState:
    """What was accepted, with everything waiting that is hidden now and that the prompt of `before` shows."""
    shown = {f.fragment_id for f in before.fragments if f.waits or not f.hidden}
    fragments = tuple(
        replace(f, waits=True) if f.hidden and f.visibility is not Visibility.REDACTED and f.fragment_id in shown else f
        for f in accepted.fragments
    )
    return accepted if fragments == accepted.fragments else replace(accepted, fragments=fragments)
