"""An import may bring a session with tens of thousands of pieces. Whatever is done with it costs four times as much for
four times as many, and not sixteen times.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cost import num_saved_by
from acmserve.context.edits.cut import cut_messages
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.history import adopt
from acmserve.context.session.nesting import crossing, hiding, lay_around
from acmserve.context.session.render import readable_text, render
from acmserve.context.session.state import _ID_STEP, _NUM_IDS, SessionState
from acmserve.context.session.turns.history import NO_TURNS
from acmserve.context.storage.codecs.session_copy import SessionCopy, copy_from, copy_value
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Place
from acmserve.server.routes.views.context import context_steps
from acmserve.server.sessions.slices import in_slices
from tests.support.context.conversation import WORDS, state_of, user
from tests.support.many_pieces import LARGE, MANY, in_one_text
from tests.support.operations import growth

Make = Callable[[int], SessionState]
SIZE, FACTOR = 50, 4
MOST = 5.5
"""What is linear costs four times as much. Sorting adds a little, and a square gives up to sixteen."""


def travelled(state: SessionState) -> SessionState:
    return copy_from(copy_value(SessionCopy("s", "sculptor", 1.0, state, NO_TURNS)), "sessions[0]").state


def viewed(state: SessionState) -> object:
    session = Session("", "s", state, "sculptor", NO_TURNS)
    return asyncio.run(in_slices(context_steps(session, WORDS, [None] * len(state.entries))))


def inner_folded(state: SessionState) -> SessionState:
    """With all fragments but the large ones hidden."""
    return replace(
        state,
        fragments=tuple(
            replace(f, visibility=Visibility.FOLDED, shown=("[x]",)) if len(f.pieces) == 1 and f.num_tokens < 20 else f
            for f in state.fragments
        ),
    )


def told_again(state: SessionState) -> object:
    """A client inserts a message, and has one more argument in each call."""
    messages = [json.loads(json.dumps(dict(entry.message))) for entry in state.entries]
    for message in messages:
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            read = json.loads(arguments) if isinstance(arguments, str) else arguments
            call["function"]["arguments"] = json.dumps({**read, "more": "x"})
    return adopt(state, [*messages[:1], user("inserted"), *messages[1:], user("more")]).state


WORK: dict[str, Callable[[SessionState], object]] = {
    "travels": travelled,
    "is shown": viewed,
    "is rendered": lambda state: render(inner_folded(state)),
    "is redacted": lambda state: edits.redact(state, LARGE),
    "is read": lambda state: readable_text(edits.redact(state, state.fragments[-1].fragment_id), state.fragments[0]),
    "is told again": told_again,
    "is cut": lambda state: cut_messages(state, 0, len(state.entries), WORDS),
    "is weighed": lambda state: num_saved_by(state, inner_folded(state), WORDS),
}


@pytest.mark.parametrize("make", MANY)
@pytest.mark.parametrize("name", WORK)
def test_four_times_as_much_costs_four_times_as_much(make: Make, name: str) -> None:
    def work(num: int) -> Callable[[], object]:
        state = make(num)
        return lambda: WORK[name](state)

    assert growth(work, SIZE, FACTOR) < MOST


@pytest.mark.parametrize("make", MANY)
def test_what_was_redacted_is_told_again(make: Make) -> None:
    """In other words, so that all of it is looked for."""

    def work(num: int) -> Callable[[], object]:
        state = edits.redact(make(num), LARGE)
        return lambda: told_again(state)

    assert growth(work, SIZE, FACTOR) < MOST


def crossed(num: int) -> SessionState:
    """Each fragment has a line of one message and one of another. What is cut out of the first crosses all of them."""
    state = in_one_text(num)
    state = state_of(state.entries[0].message, user(state.text_at(state.fragments[0].pieces[0].place)))
    pieces = in_one_text(num).fragments[0].pieces
    spans = [(piece, replace(piece, place=Place(1))) for piece in pieces]
    return replace(state, fragments=tuple(Fragment(f"g{n}", "user", span, 26) for n, span in enumerate(spans)))


def test_a_cut_that_crosses_many_fragments() -> None:
    def work(num: int) -> Callable[[], object]:
        state = crossed(num)
        state.check_integrity()
        asked = (Piece(Place(0), 0, len(state.text_at(Place(0)))),)
        assert len(crossing(state.fragments, asked)) == num
        assert len(lay_around(state.fragments, asked)) == num + 1
        return lambda: lay_around(state.fragments, asked)

    assert growth(work, SIZE, FACTOR) < MOST


def test_whether_many_pieces_are_hidden() -> None:
    def work(num: int) -> Callable[[], object]:
        state = inner_folded(in_one_text(num))
        return lambda: hiding(state.fragments, state.fragments[0].pieces)

    assert growth(work, SIZE, FACTOR) < MOST


def test_an_id_is_found_beside_many_that_are_taken() -> None:
    """After a million ids they come again, and somebody chose which of them are taken."""

    def work(num: int) -> Callable[[], object]:
        state = in_one_text(num)
        taken = [f"f{(_NUM_IDS + number) * _ID_STEP % _NUM_IDS:05x}" for number in range(1, num + 3)]
        named = (replace(f, fragment_id=name) for f, name in zip(state.fragments, taken, strict=True))
        state = replace(state, fragments=tuple(named), num_ids=_NUM_IDS)
        made, after = state.new_id("f")
        assert made not in taken
        assert after.num_ids == _NUM_IDS + num + 3
        return lambda: state.new_id("f")

    assert growth(work, SIZE, FACTOR) < MOST


def test_a_session_of_twenty_thousand_pieces() -> None:
    """It travels, and is redacted."""
    after = edits.redact(travelled(in_one_text(20_000)), LARGE)
    after.check_integrity()
    assert [fragment.fragment_id for fragment in after.fragments] == [LARGE, "faround"]
    assert len(after.redacted) == len(after.fragments[0].pieces) == 20_000
    text = after.text_at(Place(0))
    assert text.count("one two") == 20_000
    assert [text[piece.start : piece.end].strip("\x00") for piece in after.fragments[0].pieces] == [""] * 20_000
