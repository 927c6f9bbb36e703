"""`check_integrity` fails in each of its ways, and says which numbers disagree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.state import SearchHit, SessionState
from acmserve.context.transcript.message import Place
from acmserve.errors import IntegrityError
from tests.support.context.conversation import WORDS, lines, state_of, user

LENGTH = len(lines(20))


def sound() -> SessionState:
    """Two fragments, the first folded, and a search result."""
    state = state_of(user(lines(20)), user(lines(20)))
    for message in (0, 1):
        state = cut_messages(state, message, message + 1, WORDS).state
    state = edits.fold(state, state.fragments[0].fragment_id, "sculptor", WORDS)
    state = replace(state, hits=(SearchHit("s00001", Place(0), 5, 9),))
    state.check_integrity()
    return state


def first(state: SessionState, **changes: object) -> SessionState:
    """The state with its first fragment changed."""
    return replace(state, fragments=(replace(state.fragments[0], **changes), *state.fragments[1:]))  # type: ignore[arg-type]


def pieces(*spans: tuple[int, int], entry: int = 0) -> tuple[Piece, ...]:
    return tuple(Piece(Place(entry), start, end) for start, end in spans)


def visible(state: SessionState, *spans: tuple[int, int], entry: int = 0) -> SessionState:
    fragment = Fragment("f00001", "user", pieces(*spans, entry=entry), 1)
    return replace(state, fragments=(fragment, *state.fragments[1:]))


def both(state: SessionState, *spans: tuple[int, int]) -> SessionState:
    """The state with two visible fragments of one piece each."""
    found = (Fragment(f"f0000{n}", "user", pieces(span), 1) for n, span in enumerate(spans))
    return replace(state, fragments=tuple(found))


CASES: dict[str, tuple[Callable[[SessionState], SessionState], str]] = {
    "an id twice": (lambda s: first(s, fragment_id=s.fragments[1].fragment_id), "3 ids, 2 of them different"),
    "an id of both kinds": (lambda s: replace(s, hits=(*s.hits, *s.hits)), "4 ids, 3 of them different"),
    "fragments cross": (lambda s: both(s, (3, 9), (5, 12)), r"start=3, end=9.* and .*start=5, end=12.* cross"),
    "fragments of the same text": (lambda s: both(s, (3, 9), (3, 9)), r"start=3, end=9.* and .*start=3, end=9.* cross"),
    "pieces overlap": (lambda s: visible(s, (0, 9), (5, 12)), r"start=0, end=9.* and .*start=5.* overlap"),
    "beyond its text": (lambda s: visible(s, (0, LENGTH + 1)), f"in a text of {LENGTH} characters"),
    "beyond the entries": (lambda s: visible(s, (0, 1), entry=2), "in a text of -1 characters"),
    "before the entries": (lambda s: visible(s, (0, 1), entry=-1), "in a text of -1 characters"),
    "an empty piece": (lambda s: visible(s, (4, 4)), "start=4, end=4.* in a text of"),
    "a negative start": (lambda s: visible(s, (-1, 4)), "start=-1, end=4.* in a text of"),
    "a part that is none": (
        lambda s: first(s, pieces=(Piece(Place(0, 3), 0, 1),)),
        r"part=3.* in a text of 0 characters",
    ),
    "a hit beyond its text": (
        lambda s: replace(s, hits=(SearchHit("s00001", Place(1), 0, LENGTH + 1),)),
        f"in a text of {LENGTH} characters",
    ),
    "no pieces": (lambda s: first(s, pieces=(), shown=()), "the 0 pieces of f9e375 are not in order"),
    "pieces out of order": (lambda s: visible(s, (5, 9), (0, 3)), "the 2 pieces of f00001 are not in order"),
    "hidden without marker": (lambda s: first(s, shown=None), "is folded with None markers for 1 pieces"),
    "too many markers": (lambda s: first(s, shown=("a", "b")), "is folded with 2 markers for 1 pieces"),
    "visible with marker": (
        lambda s: first(s, visibility=Visibility.VISIBLE),
        "is visible with 1 markers for 1 pieces",
    ),
    "a focus without summary": (lambda s: first(s, focus="x"), "is folded with focus 'x'"),
    "a summary without focus": (
        lambda s: first(s, visibility=Visibility.SUMMARIZED),
        "is summarized with focus None",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_state_is_found(case: str) -> None:
    damage, message = CASES[case]
    with pytest.raises(IntegrityError, match=message):
        damage(sound()).check_integrity()
