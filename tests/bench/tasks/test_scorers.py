"""The papers' scorers, at their edges."""

from __future__ import annotations

import pytest

from acmserve.bench.tasks.generators.case import first_word_is
from acmserve.bench.tasks.generators.mrcr import similarity
from acmserve.bench.tasks.generators.needlebench import name_is
from acmserve.bench.tasks.generators.oolong import number_score


@pytest.mark.parametrize(
    ("answer", "score"),
    [(" frost\nbasket: dew", 1.0), ("Frost.", 1.0), ("frosty", 0.0), (" dew frost", 0.0), ("", 0.0), (" \n", 0.0)],
)
def test_first_word(answer: str, score: float) -> None:
    assert first_word_is(answer, "frost") == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (" Sarah.", 1.0),
        (" the lady Sarah, not David", 1.0),
        (" David and Sarah", 0.0),
        (" sarah", 0.0),
        ("nobody", 0.0),
        ("", 0.0),
    ],
)
def test_first_name_of_an_answer_counts(answer: str, score: float) -> None:
    assert name_is(answer, "Sarah") == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (" three", 1.0),
        ("3", 1.0),
        (" about four lines, not three", 0.75),
        (" one.", 0.5625),
        ("1000000", 0.75**64),
        ("many", 0.0),
        ("²", 0.0),
        ("", 0.0),
    ],
)
def test_a_number_scores_by_its_distance(answer: str, score: float) -> None:
    assert number_score(answer, "three") == pytest.approx(score)


def test_a_text_scores_by_what_it_shares_with_the_right_one() -> None:
    gold = "Red elm and ink, moss and teak."
    assert similarity(f" {gold}", gold) == 1.0
    assert similarity(f"  {gold}", gold) == 0.0
    assert similarity(f"{gold}\nUser: go on", gold) == pytest.approx(56 / 68)
    assert similarity("Blue" + gold[3:], gold) == 0.0
    assert 0.4 < similarity("Red elm and ink", gold) < 0.9
    assert similarity("", gold) == 0.0
