"""The prompts of `bench edit` have the sizes they claim, and repetitions share no text at their beginning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.edit.cases import EditSizes, plan_repetition

sizes = st.builds(EditSizes, *[st.integers(2, 40) for _ in range(5)], st.integers(1, 4))


@given(sizes, st.integers(0, 50), st.integers(0, 100))
def test_every_prompt_is_made_of_its_history_and_the_new_tokens(size: EditSizes, number: int, spare: int) -> None:
    plan = plan_repetition(range(size.needed + spare), number, size)
    assert len(plan.rounds) == size.rounds
    for cases in plan.rounds:
        for case in (cases.append, cases.fold, cases.append_two, cases.two_holes):
            assert len(set(case.prompt)) == len(case.prompt)
            assert len(set(case.prompt) - set(case.history)) == case.num_new


@given(sizes, st.integers(0, 50))
def test_rounds_share_their_histories_and_no_new_token(size: EditSizes, number: int) -> None:
    rounds = plan_repetition(range(size.needed), number, size).rounds
    news = [set(cases.two_holes.prompt) - set(cases.two_holes.history) for cases in rounds]
    assert len(set().union(*news)) == sum(map(len, news))
    assert len({cases.fold.history for cases in rounds}) == 1


@given(sizes, st.integers(0, 50))
def test_holes_lie_where_the_drawing_says(size: EditSizes, number: int) -> None:
    for cases in plan_repetition(range(size.needed), number, size).rounds:
        prefix, suffix = cases.fold.history[: size.prefix], cases.fold.history[size.prefix + size.folded :]
        assert cases.fold.prompt[: size.prefix] == prefix
        assert cases.fold.prompt[size.prefix + size.marker : -size.new] == suffix
        half = size.suffix // 2
        assert cases.two_holes.prompt[size.prefix + size.marker :][:half] == suffix[:half]
        assert cases.two_holes.prompt[-size.new - (size.suffix - half) : -size.new] == suffix[half:]
        assert cases.append.prompt[: len(cases.append.history)] == cases.append.history


def test_repetitions_begin_with_other_text() -> None:
    text = range(EditSizes().needed + 3_000)
    starts = [plan_repetition(text, number, EditSizes()).rounds[0].fold.history[0] for number in range(12)]
    assert len(set(starts)) == len(starts)


def test_a_text_too_short_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="the text has 5789 tokens, a repetition needs 5790"):
        plan_repetition(range(5_789), 0, EditSizes())
