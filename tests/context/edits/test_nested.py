"""Fragments as a tree: text is cut anew, folds lie in folds, and neighbouring folds share a marker."""

from __future__ import annotations

import random

import pytest

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.session.history import adopt
from acmserve.context.session.nesting import PiecesByPlace
from acmserve.context.session.render import render
from acmserve.context.tools.run import SummaryWanted
from tests.support.context.conversation import (
    WORDS,
    assistant,
    call,
    contents,
    cut,
    done,
    lines,
    refusal,
    state_of,
    user,
)

LOG = lines(40)


def test_a_cut_across_fragments_is_laid_around_them() -> None:
    """What lies within a fragment becomes one inside it, and what lies outside another one."""
    state, [first, second] = cut(state_of(user(f"a {LOG} z")), "line 5", "line 9", num=2)
    outcome = call(state, "fragment_context", start_marker="line 8", end_marker="line 12", num_fragments=1)
    state = done(outcome)
    inside, outside = (state.fragment(name) for name in outcome.fragment_ids)
    known = PiecesByPlace(state.fragment(second).pieces)
    assert known.covers(inside.pieces)
    assert not known.overlaps(outside.pieces)
    assert state.fragment_text(inside) + state.fragment_text(outside) == LOG[LOG.index("line 8") : LOG.index(" 12") + 3]
    state, [around] = cut(state, "a line", "z")
    pieces = PiecesByPlace(state.fragment(around).pieces)
    assert all(pieces.covers(fragment.pieces) for fragment in state.fragments)
    assert cut(state, "a line", "z")[1] == [around]
    assert cut(state, "line 5", "line 9", num=2)[1] == [first, second]


def test_twenty_small_pieces_are_cut_anew_into_large_ones() -> None:
    """The complaint: none of them was worth a fold, and the longer text that was advised overlapped them."""
    text = " ".join(f"w{number}" for number in range(180))
    state, small = cut(state_of(user(text)), "w0", "w179", num=20)
    refused = refusal(state, call(state, "fold_fragment", fragment_id=small[0]))
    assert refused.endswith("Leave it visible, or fragment a longer text around it.")
    state, large = cut(state, "w0", "w179", num=2)
    assert [state.fragment(name).num_tokens for name in large] == [90, 90]
    state = done(call(state, "fold_fragment", fragment_id=large[0]))
    assert contents(state)[0].startswith(f"[folded {large[0]}: 90 tokens hidden")


def test_two_hundred_folds_are_one_marker() -> None:
    state, folded = state_of(user("".join(f"part {i} {'word ' * 28}\n" for i in range(200)))), list[str]()
    for part in range(0, 200, 20):
        state, made = cut(state, f"part {part} ", f"part {part + 19} {'word ' * 28}", num=20)
        folded += made
    assert len(folded) == 200
    for name in folded:
        state = edits.fold(state, name, "sculptor", WORDS)
    first, *others = (state.fragment(name).num_tokens for name in folded)
    marker = (
        f'[folded {folded[0]}: {first} tokens hidden; restore_fragment("{folded[0]}") to read]'
        f"[and 199 more up to {folded[-1]}: {sum(others):,} tokens]\n"
    )
    assert contents(state) == [marker]
    state = done(call(state, "restore_fragment", fragment_id=folded[100]))
    assert contents(state)[0].count("[folded ") == 2
    for name in random.Random(0).sample(folded, 200):
        state = edits.restore(state, name) if name != folded[100] else state
    assert render(state)[0] is state.entries[0].message


def test_a_fold_around_folds_shows_its_own_marker_and_gives_them_back() -> None:
    state, [inner] = cut(state_of(user(LOG)), "line 3 ", "end\nline 12 word")
    state = done(call(state, "fold_fragment", fragment_id=inner))
    before = contents(state)
    state, [outer] = cut(state, "line 1 ", "line 20 word")
    state = done(call(state, "fold_fragment", fragment_id=outer))
    assert inner not in contents(state)[0]
    told = refusal(state, call(state, "summarize_fragment", fragment_id=inner, focus="x", supplied="s"))
    assert told == f"Error: fragment_id: {inner} is hidden already, inside folded {outer}. Restore {outer} first."
    assert contents(done(call(state, "restore_fragment", fragment_id=outer))) == before
    opened = call(state, "restore_fragment", fragment_id=inner)
    assert not opened.changed
    assert opened.result == f"{inner} is restored, inside folded {outer}: restore that to read it."
    assert contents(done(call(opened.state, "restore_fragment", fragment_id=outer))) == [LOG]


@pytest.mark.parametrize("written", [" F9E375 ", "f9 e375", '"f9e375"', "[F9e375]"])
def test_ids_forgive_case_and_spaces(written: str) -> None:
    state, _ = cut(state_of(user(LOG)), "line 0", "line 39")
    state = done(call(state, "fold_fragment", fragment_id=written))
    assert contents(done(call(state, "restore_fragment", fragment_id=written))) == [LOG]


def test_what_is_redacted_inside_a_fragment_is_in_no_summary_of_it() -> None:
    state, [inner] = cut(state_of(user(LOG)), "line 3 ", "line 5 word")
    state, [outer] = cut(state, "line 1 ", "line 20 word")
    state = done(call(state, "summarize_fragment", fragment_id=outer, focus="x", supplied="It speaks of line 3."))
    state = edits.redact(state, inner)
    state.check_integrity()
    assert "speaks of" not in repr(state)
    assert f"[redacted {inner}: " in contents(state)[0]
    wanted = call(state, "summarize_fragment", fragment_id=outer, focus="x").needs
    assert isinstance(wanted, SummaryWanted)
    assert "\x00" not in wanted.text
    assert f"[redacted {inner}: " in wanted.text
    again = edits.redact(state, outer)
    again.check_integrity()
    assert [fragment.fragment_id for fragment in again.fragments] == [outer]
    assert {text.fragment_id for text in again.redacted} == {outer}


def test_a_redaction_that_comes_again_elsewhere_drops_what_it_would_cross() -> None:
    """The client tells the redacted text in a new message. A fragment around its first place would hold half of it."""
    secret = "the code of the door is four seven one one"
    history = [user(f"{lines(3)}\n{secret}\n{lines(3)}"), assistant("Noted .")]
    state, [inner] = cut(state_of(*history), "the code", "one one")
    outer = cut_messages(edits.redact(state, inner), 0, 1, WORDS)
    carried = adopt(outer.state, [*history, user(f"Again : {secret}"), assistant("Yes .")])
    carried.state.check_integrity()
    assert secret not in str([entry.message for entry in carried.state.entries])
    left = {fragment.fragment_id for fragment in carried.state.fragments}
    assert left == {inner}
    assert [edit.edit_id for edit in carried.dropped] == [outer.fragments[0].fragment_id]
