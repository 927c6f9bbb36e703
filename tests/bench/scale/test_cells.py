"""The prompts of `bench scale`: holes of one size, what is in front and behind, and new tokens that nobody has read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.scale.cells import MARKER_TOKENS, MESSAGE_TOKENS, ScaleCell, plan_cells, plan_nested, plan_rounds
from acmserve.errors import AcmError

TEXT = tuple(range(60_000))

cells = st.builds(
    ScaleCell,
    context_tokens=st.integers(1000, 8000),
    front_share=st.sampled_from([0.1, 0.5, 0.9]),
    num_holes=st.integers(1, 30),
)


@given(cell=cells, number=st.integers(0, 5))
def test_an_edit_is_its_front_its_pieces_and_new_tokens(cell: ScaleCell, number: int) -> None:
    for edit in plan_rounds(TEXT, cell, number, num_rounds=3):
        (context,) = edit.turns
        assert len(context) == cell.context_tokens
        assert edit.prompt[: edit.num_front] == context[: edit.num_front]
        known = set(context)
        old = [token for token in edit.prompt if token in known]
        place = {token: index for index, token in enumerate(context)}
        assert old == sorted(old, key=place.__getitem__)
        assert len(old) == edit.num_front + edit.num_behind
        assert edit.num_new == cell.num_new == cell.num_holes * MARKER_TOKENS + MESSAGE_TOKENS
        assert len(edit.append) == len(edit.prompt) + cell.num_new


@given(cell=cells)
def test_rounds_share_the_context_and_no_new_token(cell: ScaleCell) -> None:
    rounds = plan_rounds(TEXT, cell, 1, num_rounds=3)
    assert len({edit.turns for edit in rounds}) == 1
    new = [set(edit.append) - set(edit.turns[0]) for edit in rounds]
    assert len(set.union(*new)) == sum(map(len, new)) == 3 * 2 * cell.num_new


@given(cell=cells)
def test_three_eighths_behind_the_front_are_removed(cell: ScaleCell) -> None:
    (edit,) = plan_rounds(TEXT, cell, 1, num_rounds=1)
    behind = cell.context_tokens - edit.num_front
    removed = cell.context_tokens - edit.num_front - edit.num_behind
    assert 3 * behind // 8 - 2 * cell.num_holes < removed <= 3 * behind / 8


def test_cells_differ_in_one_thing_from_the_first_of_their_length() -> None:
    """Those with more holes from one with as many new tokens."""
    found = plan_cells((1024, 8192, 16_384), (0.5,), (1, 64), at=8192)
    one, many = ScaleCell(8192, message_tokens=534), ScaleCell(8192, num_holes=64)
    assert found == [ScaleCell(1024), ScaleCell(8192), ScaleCell(8192, 0.5), one, many, ScaleCell(16_384)]
    assert one.num_new == many.num_new == 542
    assert [cell.is_plain for cell in found] == [True, True, True, False, False, True]
    assert str(one) == "8,192 tokens, 1 hole from 10 %, 542 new tokens"


def test_contexts_begin_alike_and_no_cell_shares_a_new_token() -> None:
    """Distinct numbers stand for the text, so that a token says where it was taken."""
    planned = plan_nested(TEXT, plan_cells((1024, 8192), (0.5,), (1, 16), at=8192), num_rounds=4)
    assert all(edit.turns == (TEXT[: cell.context_tokens],) for cell, edits in planned.items() for edit in edits)
    new = [set(edit.append) - set(TEXT[:8192]) for edits in planned.values() for edit in edits]
    assert len(set.union(*new)) == sum(map(len, new)) == sum(8 * cell.num_new for cell in planned)
    with pytest.raises(AcmError, match="all cells need"):
        plan_nested(TEXT[:9000], list(planned), num_rounds=20)


def test_a_text_that_is_too_short_is_named() -> None:
    with pytest.raises(AcmError, match="the text has 100 tokens"):
        plan_rounds(TEXT[:100], ScaleCell(1024), 0, 1)


def test_holes_without_tokens_are_refused() -> None:
    with pytest.raises(AcmError, match="choose fewer holes"):
        plan_rounds(TEXT, ScaleCell(100, 0.9, num_holes=8), 0, 1)
