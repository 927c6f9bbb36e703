"""The running estimate of harm: bounded, monotone, and it forgets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import IntegrityError
from acmserve.plan.harm.estimate import HALF_LIFE, LEAST_VARIANCE, MAX_HARM, MIN_TOKENS, HarmEstimate
from acmserve.plan.harm.level import BOLDER_TOKENS, AutoLevel, ladder_of

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
    assert 0 <= found.mean <= MAX_HARM + 1e-9
    assert (found.num_tokens, found.num_answers) == (sum(map(len, given)), sum(map(bool, given)))
    assert found.num_effective <= found.num_tokens + 1e-6
    assert (found.upper is not None) == (found.num_effective >= MIN_TOKENS)
    if found.upper is not None:
        assert found.mean < found.upper <= MAX_HARM * (1 + 2 / MIN_TOKENS**0.5)


@given(answers.filter(any), st.data())
def test_more_harm_at_any_token_raises_the_mean(given: list[list[float]], data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from([index for index, one in enumerate(given) if one]))
    place = data.draw(st.integers(0, len(given[answer]) - 1))
    worse = [list(one) for one in given]
    more = data.draw(st.floats(0, 5))
    worse[answer][place] += more if worse[answer][place] >= 0 else -more
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
    long = HarmEstimate().with_answer(np.log(moved / exact)[drawn].tolist())
    divergence = float((moved * np.log(moved / exact)).sum())
    assert long.upper is not None
    assert abs(long.mean - divergence) < 2 * (long.upper - long.mean) < 0.02


def test_little_is_no_evidence_and_a_run_of_equal_tokens_is_not_certain() -> None:
    assert HarmEstimate().with_answer([1.0] * (MIN_TOKENS - 1)).upper is None
    upper = HarmEstimate().with_answer([0.0] * (2 * MIN_TOKENS)).upper
    assert upper is not None
    assert LEAST_VARIANCE < upper < 0.04


def test_greedy_answers_do_not_cancel() -> None:
    assert HarmEstimate().with_answer([-0.5, 0.5]).mean > 0.1
    assert HarmEstimate().with_answer([0.0, 0.0]).mean == 0


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        HarmEstimate().with_answer([float("nan")])


@pytest.mark.parametrize(
    "wrong", [{"total": 9.0}, {"total": -1.0}, {"squared_weight": 2.0}, {"num_answers": 2}, {"weight": -1.0}]
)
def test_integrity(wrong: dict[str, float]) -> None:
    found = HarmEstimate().with_answer([0.5])
    found.check_integrity()
    with pytest.raises(IntegrityError, match="the sum of no answers"):
        replace(found, **wrong).check_integrity()  # type: ignore[arg-type]


SAFE, HARM = [0.0] * 200, [0.5] * 200


def stand(place: int = 2, floor: int = 0, boldest: str = "") -> AutoLevel:
    return AutoLevel(ladder_of("default", boldest), place, floor)


@pytest.mark.parametrize(
    ("calibrated", "boldest", "names", "start", "floor"),
    [
        ("default", "", ("exact", "careful", "default"), 2, 1),
        ("default", "every", ("exact", "careful", "default", "bold", "every"), 2, 1),
        ("default", "careful", ("exact", "careful", "default"), 2, 1),
        ("exact", "", ("exact",), 0, 0),
        ("careful", "default", ("exact", "careful", "default"), 1, 1),
        ("of-later", "bold", ("exact", "careful", "of-later"), 2, 1),
    ],
)
def test_the_ladder_ends_at_what_is_allowed(
    calibrated: str, boldest: str, names: tuple[str, ...], start: int, floor: int
) -> None:
    ladder = ladder_of(calibrated, boldest)
    assert (ladder.names, ladder.start, ladder.model_floor) == (names, start, floor)


def test_harm_makes_careful_and_what_was_judged_before_counts_no_more() -> None:
    once = stand().with_answer(HARM)
    assert (once.name, once.estimate, once.num_falls) == ("careful", HarmEstimate(), 1)
    assert once.with_answer(HARM).name == "exact"
    assert stand(1, floor=1).with_answer(HARM).name == "careful"
    assert stand().with_answer(HARM[: MIN_TOKENS - 1]).name == "default", "too little to conclude anything"


def test_it_grows_bolder_after_enough_and_more_slowly_after_each_fall() -> None:
    def num_answers(level: AutoLevel) -> int:
        for number in range(1, 99):
            later = level.with_answer(SAFE)
            if later.place > level.place:
                return number
            level = later
        return 0

    assert num_answers(stand(1)) == -(-BOLDER_TOKENS // len(SAFE))
    assert num_answers(replace(stand(1), num_falls=1)) == -(-2 * BOLDER_TOKENS // len(SAFE))
    assert num_answers(stand(2)) == 0, "the calibrated level is the boldest"
    assert num_answers(stand(2, boldest="bold")) > 0


@given(st.lists(st.sampled_from([SAFE, HARM, [0.03] * 200, [-0.1] * 9]), max_size=30), st.integers(0, 1))
def test_a_level_stays_on_its_ladder_and_moves_by_one(given_answers: list[list[float]], floor: int) -> None:
    level = stand(2, floor, "bold")
    for answer in given_answers:
        later = level.with_answer(answer)
        later.check_integrity()
        assert abs(later.place - level.place) <= 1
        level = later


@given(ratios.filter(bool), st.floats(0, 3))
def test_more_harm_is_never_bolder(answer: list[float], more: float) -> None:
    worse = [abs(one) + more for one in answer]
    before = stand(1, boldest="bold").with_answer([0.0] * 600)
    assert before.with_answer(worse).place <= before.with_answer([abs(one) for one in answer]).place


def test_a_level_off_its_ladder_is_found() -> None:
    for wrong in (stand(3), stand(0, floor=1)):
        with pytest.raises(IntegrityError, match="level"):
            wrong.check_integrity()
