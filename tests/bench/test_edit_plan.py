"""The prompts of `bench edit` have the sizes they claim, and repetitions share no text at their beginning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.edit_plan import Sizes, plan_repetition

sizes = st.builds(Sizes, *[st.integers(2, 40) for _ in range(5)])


@given(sizes, st.integers(0, 50), st.integers(0, 100))
def test_every_prompt_is_made_of_its_history_and_the_new_tokens(size: Sizes, number: int, spare: int) -> None:
    plan = plan_repetition(range(size.needed + spare), number, size)
    for case in (plan.fold, plan.two_holes, plan.append, plan.append_two):
        assert len(set(case.prompt)) == len(case.prompt)
        assert len(set(case.prompt) - set(case.history)) == case.num_new


@given(sizes, st.integers(0, 50))
def test_holes_lie_where_the_drawing_says(size: Sizes, number: int) -> None:
    plan = plan_repetition(range(size.needed), number, size)
    prefix, suffix = plan.fold.history[: size.prefix], plan.fold.history[size.prefix + size.folded :]
    assert plan.fold.prompt[: size.prefix] == prefix
    assert plan.fold.prompt[size.prefix + size.marker : -size.new] == suffix
    half = size.suffix // 2
    assert plan.two_holes.prompt[size.prefix + size.marker :][:half] == suffix[:half]
    assert plan.two_holes.prompt[-size.new - (size.suffix - half) : -size.new] == suffix[half:]
    assert plan.append.prompt[: len(plan.append.history)] == plan.append.history


def test_repetitions_begin_with_other_text() -> None:
    text = range(Sizes().needed + 3_000)
    starts = [plan_repetition(text, number, Sizes()).fold.history[0] for number in range(12)]
    assert len(set(starts)) == len(starts)


def test_a_text_too_short_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="the text has 5589 tokens, a repetition needs 5590"):
        plan_repetition(range(5_589), 0, Sizes())
