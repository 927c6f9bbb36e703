"""The gate of `bench edit`: another token or another log-probability turns it red, and so does a blind control."""

from __future__ import annotations

import math

import pytest

from acmserve.bench.edit.gate import (
    NUM_COMPARED,
    NUM_TOKENS,
    TOLERANCE,
    AnswerDistance,
    check_control,
    compare_answers,
)
from acmserve.bench.edit.kinds import EditSizes
from acmserve.bench.edit.run import EXACT, REUSE, Cell, as_report
from acmserve.bench.harness.engine import EngineReply

SAME = AnswerDistance(NUM_TOKENS, NUM_TOKENS, TOLERANCE / 10)
OTHER = AnswerDistance(NUM_TOKENS, NUM_TOKENS, TOLERANCE * 10)


def answer(tokens: tuple[int, ...], shift: float = 0.0, at: int = 0) -> EngineReply:
    """An answer whose token `at` is less likely by `shift`, with 20 tokens listed in each place."""
    listed = [{token + more: -1.0 - more for more in range(20)} for token in tokens]
    listed[at][tokens[at]] -= shift
    return EngineReply(0.1, 0, tokens, "", None, tuple(listed))


STOCK = answer((5, 7, 9))


@pytest.mark.parametrize(
    ("given", "num_same", "difference", "is_same"),
    [
        (answer((5, 7, 9)), 3, 0.0, True),
        (answer((5, 7, 9), TOLERANCE / 2, at=2), 3, TOLERANCE / 2, True),
        (answer((5, 7, 9), TOLERANCE * 2, at=2), 3, TOLERANCE * 2, False),
        (answer((5, 7, 8)), 2, 1.0, False),
        (answer((5, 7)), 2, 0.0, False),
    ],
)
def test_every_token_and_its_probability_counts(
    given: EngineReply, num_same: int, difference: float, is_same: bool
) -> None:
    found = compare_answers(given, STOCK)
    assert (found.num_same, found.num_tokens) == (num_same, 3)
    assert found.is_same is is_same
    if num_same == 3:
        assert found.largest_difference == pytest.approx(difference)


def test_what_follows_another_token_is_not_compared() -> None:
    """Two continuations of different texts have nothing to be compared by."""
    given = EngineReply(0.1, 0, (6, 7, 9), "", None, answer((5, 7, 9), 100.0, at=2).logprobs)
    assert compare_answers(given, STOCK) == AnswerDistance(3, 0, 0.0)


def test_a_likely_token_that_is_not_listed_is_infinitely_far() -> None:
    short = EngineReply(0.1, 0, (5, 7, 9), "", None, tuple({token: -1.0} for token in (5, 7, 9)))
    found = compare_answers(short, STOCK)
    assert math.isinf(found.largest_difference)
    assert found.as_dict()["largest_difference"] is None
    assert NUM_COMPARED > 1


def test_without_probabilities_nothing_passes() -> None:
    plain = EngineReply(0.1, 0, (5, 7, 9), "", None)
    assert not compare_answers(plain, plain).is_same


def test_a_gate_that_lets_moved_kv_pass_is_red() -> None:
    assert check_control([SAME, OTHER]) == []
    assert check_control([]) == []
    assert "in all 2 kinds of edit" in check_control([SAME, SAME])[0]


@pytest.mark.parametrize(
    ("kind", "moved", "is_green"), [("fold", OTHER, True), ("fold", SAME, False), ("restore", SAME, True)]
)
def test_a_report_tells_no_time_behind_a_blind_gate(kind: str, moved: AnswerDistance, is_green: bool) -> None:
    made = Cell(kind, answers={EXACT: SAME, REUSE: moved})
    made.seconds[REUSE] = [0.2]
    report = as_report([made], EditSizes())
    assert report["gate"]["green"] is is_green
    assert bool(report["cells"][0]["medians"]) is is_green
    assert report["cells"][0]["answers"]["exact"]["num_same"] == NUM_TOKENS
