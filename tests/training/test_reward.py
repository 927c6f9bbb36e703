"""Rewards and advantages: Equations 3 and 4 of Sculptor, and the process rewards of Context-Folding."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest

from acmserve.errors import InvalidRequest, NotFound
from acmserve.training.advantage import fold_advantages, group_advantages
from acmserve.training.process_reward import process_rewards
from acmserve.training.record import read_rollout
from acmserve.training.reward import RewardLimits, outcome_reward, violation
from acmserve.training.rollout import Rollout
from tests.support.training.sessions import HEADER, Session


def rollout_of(num_calls: int = 0, num_tokens: int = 4, format_error: str | None = None) -> Rollout:
    session = Session(random.Random(0))
    calls = [("grep", None)] * num_calls
    session.serve([[1] * (num_tokens - 2)], calls, num_tokens=1, format_error=format_error)
    return read_rollout(session.record())


@pytest.mark.parametrize(
    ("rollout", "broken"),
    [
        (rollout_of(), None),
        (rollout_of(num_calls=20), None),
        (rollout_of(num_calls=21), "calls"),
        (rollout_of(num_tokens=128_000), None),
        (rollout_of(num_tokens=128_001), "tokens"),
        (rollout_of(format_error="no such tool"), "format_error"),
    ],
)
def test_equation_4(rollout: Rollout, broken: str | None) -> None:
    assert violation(rollout) == broken
    rewards = outcome_reward(rollout, is_correct=True), outcome_reward(rollout, is_correct=False)
    assert rewards == ((1.0, 0.0) if broken is None else (-1.0, -1.0))


def test_the_limits_are_options() -> None:
    assert violation(rollout_of(num_calls=3), RewardLimits(max_calls=2)) == "calls"
    assert violation(rollout_of(num_tokens=9), RewardLimits(max_tokens=8)) == "tokens"
    with pytest.raises(InvalidRequest, match="max_calls: must be at least 0, not -1"):
        RewardLimits(max_calls=-1)


def test_equation_3() -> None:
    rewards = [1.0, 0.0, -1.0, 1.0]
    mean, deviation = fmean(rewards), stdev(rewards)
    assert group_advantages(rewards) == [(reward - mean) / deviation for reward in rewards]


@pytest.mark.parametrize("rewards", [[1.0], [0.0, 0.0], [0.1] * 7])
def test_without_variance_there_is_no_advantage(rewards: list[float]) -> None:
    assert group_advantages(rewards) == [0.0] * len(rewards)
    assert fold_advantages(rewards, [{0: -1.0}] * len(rewards)) == [{0: 0.0}] * len(rewards)


def folding_rollout() -> Rollout:
    """Main opens a branch, the branch works, main answers. Main grows to 20 tokens."""
    session = Session(random.Random(0))
    context = [[1] * 9]
    opened = session.serve(context, [("branch", "branch")], num_tokens=2)
    context.append([*HEADER, *opened.token_ids])
    inside = session.serve([*context, [2] * 50], thread="branch-1", parent=0, num_tokens=3, format_error="no JSON")
    session.serve([*context, [2] * 50, [*HEADER, *inside.token_ids]], thread="branch-1", parent=1, num_tokens=3)
    session.serve([*context, [4] * 3], parent=0, num_tokens=4)
    return read_rollout(session.record())


def test_process_rewards() -> None:
    rollout = folding_rollout()
    assert rollout.completions[3].num_tokens == 20
    assert process_rewards(rollout, 40) == {0: 0.0, 1: -1.0, 2: 0.0, 3: 0.0}
    assert process_rewards(rollout, 39) == {0: 0.0, 1: -1.0, 2: 0.0, 3: -1.0}
    assert process_rewards(rollout, 40, ["branch-1"], [3]) == {0: 0.0, 1: -1.0, 2: -0.2, 3: -1.0}


@pytest.mark.parametrize(
    ("scope", "failed", "said"), [(["branch-2"], [], "branch-2"), (["main"], [], "main"), ([], [9], "completion 9")]
)
def test_what_the_rollout_lacks_is_named(scope: list[str], failed: list[int], said: str) -> None:
    with pytest.raises(NotFound, match=said):
        process_rewards(folding_rollout(), 40, scope, failed)


def test_fold_advantages() -> None:
    """(clip(r + q, 0, 1) - mean) / std, with the mean and deviation of the outcomes."""
    rewards, processes = [1.0, 0.0, 1.0], [{0: 0.0, 1: -0.2, 2: -1.0}, {0: 0.0, 1: -1.0}, {0: 0.0}]
    mean, deviation = fmean(rewards), stdev(rewards)
    expected = [[1.0, 0.8, 0.0], [0.0, 0.0], [1.0]]
    for found, values in zip(fold_advantages(rewards, processes), expected, strict=True):
        assert list(found.values()) == [(value - mean) / deviation for value in values]


def test_clipping_lifts_no_outcome() -> None:
    found = fold_advantages([1.0, -1.0], [{0: 0.0}, {0: 0.0, 1: -1.0}])
    assert found[1] == {0: -1 / math.sqrt(2), 1: -1 / math.sqrt(2)}
    with pytest.raises(InvalidRequest, match="clip: must rise"):
        fold_advantages([1.0, 0.0], [{}, {}], (1.0, 1.0))
