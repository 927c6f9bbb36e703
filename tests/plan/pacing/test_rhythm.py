"""What the pauses of a client foretell, and how long a step takes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import IntegrityError
from acmserve.plan.pacing.rhythm import NUM_PAUSES, Rhythm
from acmserve.plan.pacing.step_time import StepTime

pauses = st.lists(st.floats(0, 1000), max_size=2 * NUM_PAUSES)


def rhythm_of(seen: list[float]) -> Rhythm:
    rhythm = Rhythm()
    for pause in seen:
        rhythm.note(pause)
        rhythm.check_integrity()
    return rhythm


@given(pauses, st.floats(0, 2000), st.floats(0, 10), st.floats(0, 10))
def test_a_chance_grows_with_the_time_that_is_waited(
    seen: list[float], silence: float, first: float, more: float
) -> None:
    rhythm = rhythm_of(seen)
    short, long = rhythm.chance(silence, first), rhythm.chance(silence, first + more)
    assert 0 <= short <= long + 1e-9
    assert long <= 1


def test_a_client_with_a_rhythm_is_expected_when_it_comes() -> None:
    rng = random.Random(1)
    rhythm = rhythm_of([rng.uniform(1.9, 2.1) for _ in range(NUM_PAUSES)])
    assert rhythm.chance(0.1, 0.2) < 0.01
    assert rhythm.chance(1.85, 0.3) > 0.9
    assert rhythm.chance(10.0, 0.2) < 0.05, "it is late, and who knows"
    assert rhythm.chance(1000.0, 0.2) == 0, "it is gone"


def test_the_foretold_chances_are_those_that_come() -> None:
    """Of uniform pauses from half a second to five: a chunk's end lies behind as many arrivals as foretold."""
    rng, rhythm = random.Random(2), Rhythm()
    foretold = came = 0.0
    for _ in range(4000):
        pause, start = rng.uniform(0.5, 5), rng.uniform(0, 5)
        if len(rhythm) == NUM_PAUSES and pause > start:
            foretold += rhythm.chance(start, 0.2)
            came += pause < start + 0.2
        rhythm.note(pause)
    assert came == pytest.approx(foretold, rel=0.15)


def test_old_pauses_are_forgotten() -> None:
    rhythm = rhythm_of([1.0] * 50 + [9.0] * NUM_PAUSES)
    assert len(rhythm) == NUM_PAUSES
    assert rhythm.chance(0.5, 1.0) < 0.01


def test_integrity() -> None:
    rhythm = rhythm_of([1.0, 2.0])
    rhythm._sorted.pop()
    with pytest.raises(IntegrityError, match="2 pauses noted"):
        rhythm.check_integrity()


def test_a_step_has_a_fixed_part() -> None:
    steps = StepTime(16)
    assert steps.predict(100) == 0
    steps.note(3, 9.0)
    assert steps.predict(100) == 0, "shorter than a block"
    for num_tokens in (32, 128, 64, 256):
        steps.note(num_tokens, 0.04 + 0.001 * num_tokens)
    assert steps.predict(100) == pytest.approx(0.14)
    assert steps.predict(0) == pytest.approx(0.04)
