"""The running estimate of harm: bounded, monotone, and it forgets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import IntegrityError
from acmserve.plan.harm.estimate import HALF_LIFE, LEAST_VARIANCE, MAX_LOG_RATIO, MIN_TOKENS, HarmEstimate

ratios = st.lists(st.floats(-20, 20), max_size=40)
answers = st.lists(ratios, max_size=8)


def estimate_of(given: list[list[float]], before: HarmEstimate | None = None) -> HarmEstimate:
    found = before or HarmEstimate()
    for answer in given:
        found = found.with_answer(answer)
    return found


@given(answers)
def test_it_is_bounded(given: list[list[float]]) -> None:
    found = estimate_of(given)
    found.check_integrity()
    assert abs(found.mean) <= MAX_LOG_RATIO + 1e-9
    assert (found.num_tokens, found.num_answers) == (sum(map(len, given)), sum(map(bool, given)))
    assert found.num_effective <= found.num_tokens + 1e-6
    assert (found.upper is not None) == (found.num_effective >= MIN_TOKENS)
    if found.upper is not None:
        assert found.mean < found.upper <= MAX_LOG_RATIO * (1 + 2 / MIN_TOKENS**0.5)


@given(answers.filter(any), st.data())
def test_more_harm_at_any_token_raises_the_mean(given: list[list[float]], data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from([index for index, one in enumerate(given) if one]))
    place = data.draw(st.integers(0, len(given[answer]) - 1))
    worse = [list(one) for one in given]
    worse[answer][place] += data.draw(st.floats(0, 5))
    assert estimate_of(worse).mean >= estimate_of(given).mean - 1e-9


@given(answers)
def test_it_forgets(given: list[list[float]]) -> None:
    """Twenty half-lives of harmless tokens leave nothing of what was before."""
    later = [[0.0] * HALF_LIFE] * 20
    assert abs(estimate_of(later, estimate_of(given)).mean) < 1e-4
    fresh, old = estimate_of(later).upper, estimate_of(later, estimate_of(given)).upper
    assert old == pytest.approx(fresh, abs=1e-3)


@given(ratios.filter(bool), st.integers(1, 39))
def test_answers_may_come_in_pieces(one: list[float], place: int) -> None:
    whole, pieces = estimate_of([one]), estimate_of([one[:place], one[place:]])
    assert pieces.mean == pytest.approx(whole.mean, abs=1e-9)
    assert pieces.num_effective == pytest.approx(whole.num_effective)


def test_the_mean_is_the_divergence_where_tokens_are_drawn() -> None:
    """Two distributions over four tokens, and an answer drawn from the first one."""
    moved, exact = np.array([0.6, 0.2, 0.15, 0.05]), np.array([0.4, 0.3, 0.2, 0.1])
    drawn = np.random.default_rng(0).choice(4, size=40_000, p=moved)
    long = replace(HarmEstimate().with_answer(np.log(moved / exact)[drawn[-HALF_LIFE:]].tolist()))
    divergence = float((moved * np.log(moved / exact)).sum())
    assert np.log(moved / exact)[drawn].mean() == pytest.approx(divergence, abs=0.01)
    assert long.upper is not None
    assert abs(long.mean - divergence) < 2 * (long.upper - long.mean)


def test_little_is_no_evidence_and_a_run_of_equal_tokens_is_not_certain() -> None:
    assert HarmEstimate().with_answer([1.0] * (MIN_TOKENS - 1)).upper is None
    upper = HarmEstimate().with_answer([0.0] * (2 * MIN_TOKENS)).upper
    assert upper is not None
    assert LEAST_VARIANCE < upper < 0.04


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        HarmEstimate().with_answer([float("nan")])


@pytest.mark.parametrize("wrong", [{"total": 9.0}, {"squared_weight": 2.0}, {"num_answers": 2}, {"weight": -1.0}])
def test_integrity(wrong: dict[str, float]) -> None:
    found = HarmEstimate().with_answer([0.5])
    found.check_integrity()
    with pytest.raises(IntegrityError, match="the sum of no answers"):
        replace(found, **wrong).check_integrity()  # type: ignore[arg-type]
