"""What the rollouts of an export earned: a reward for each, and an advantage for each completion of a group.

    {"session_id": "a", "correct": true, "group": "question-7", "out_of_scope": ["branch-2"]}
    {"session_id": "b", "reward": 0.5, "group": "question-7"}

One such line for each rollout. `correct` becomes a reward by Equation 4 of *Sculptor* (arXiv 2508.04664), and `reward`
is taken as it is. Rollouts with one `group` had one query. Without a group there is a reward and no advantage.

Decision: a rollout without a line is an error. Left out in silence, it would shift the mean of its group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.errors import MalformedRecord, NotFound
from acmserve.training.advantage import fold_advantages, group_advantages
from acmserve.training.process_reward import process_rewards
from acmserve.training.reward import RewardLimits, outcome_reward
from acmserve.training.rollout import Rollout
from acmserve.validation import echo, listing

FIELDS = ("session_id", "correct", "reward", "group", "out_of_scope")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What somebody says of one rollout. Either `correct` or `reward` is set."""

    correct: bool | None
    reward: float | None
    group: str | None
    out_of_scope: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Credit:
    """What one rollout earned. `advantages` are those of its completions, None without a group.

    `is_shared`: all completions have one advantage. FoldGRPO gives each its own.
    """

    reward: float
    group: str | None = None
    advantages: Mapping[int, float] | None = None
    is_shared: bool = True


def read_judgements(lines: Iterable[str]) -> dict[str, Judgement]:
    """The judgements by session id. Raises `MalformedRecord`."""
    found: dict[str, Judgement] = {}
    for line, text in enumerate(lines, 1):
        if text.strip():
            session_id, judgement = _read_judgement(line, text)
            if session_id in found:
                raise MalformedRecord(line, "session_id", f"{echo(session_id)} has an earlier line")
            found[session_id] = judgement
    return found


def give_credit(
    rollouts: Sequence[Rollout],
    judgements: Mapping[str, Judgement],
    limits: RewardLimits | None = None,
    context_limit: int | None = None,
) -> list[Credit]:
    """The credit of each rollout. With `context_limit`, advantages are those of FoldGRPO."""
    for rollout in rollouts:
        if rollout.session_id not in judgements:
            raise NotFound("rewards", f"have no line for session {rollout.session_id!a}.", "Each rollout needs one.")
    chosen = [judgements[rollout.session_id] for rollout in rollouts]
    rewards = [_reward(rollout, judgement, limits) for rollout, judgement in zip(rollouts, chosen, strict=True)]
    earned = [Credit(reward, judgement.group) for reward, judgement in zip(rewards, chosen, strict=True)]
    for group in dict.fromkeys(judgement.group for judgement in chosen if judgement.group is not None):
        places = [place for place, judgement in enumerate(chosen) if judgement.group == group]
        members = [rollouts[place] for place in places]
        outcomes = [rewards[place] for place in places]
        if context_limit is None:
            values = group_advantages(outcomes)
            advantages = [dict.fromkeys(one.completions, value) for one, value in zip(members, values, strict=True)]
        else:
            scopes = [chosen[place].out_of_scope for place in places]
            processes = [process_rewards(one, context_limit, scope) for one, scope in zip(members, scopes, strict=True)]
            advantages = fold_advantages(outcomes, processes)
        for place, advantage in zip(places, advantages, strict=True):
            earned[place] = Credit(rewards[place], group, advantage, is_shared=context_limit is None)
    return earned


def _reward(rollout: Rollout, judgement: Judgement, limits: RewardLimits | None) -> float:
    if judgement.reward is not None:
        return judgement.reward
    return outcome_reward(rollout, is_correct=bool(judgement.correct), limits=limits)


def _read_judgement(line: int, text: str) -> tuple[str, Judgement]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(line, "", f"is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise MalformedRecord(line, "", f"must be an object, not {echo(value)}")
    for key in value:
        if key not in FIELDS:
            raise MalformedRecord(line, str(key), f"is unknown; a line of rewards knows {listing(FIELDS)}")
    session_id = value.get("session_id")
    if not isinstance(session_id, str):
        raise MalformedRecord(line, "session_id", f"must be a string, not {echo(session_id)}")
    if ("correct" in value) == ("reward" in value):
        raise MalformedRecord(line, "correct", "or reward must be there, and not both")
    correct = value.get("correct")
    reward: Any = value.get("reward")
    if "correct" in value and not isinstance(correct, bool):
        raise MalformedRecord(line, "correct", f"must be true or false, not {echo(correct)}")
    is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
    if "reward" in value and not (is_number and math.isfinite(reward)):
        raise MalformedRecord(line, "reward", f"must be a finite number, not {echo(reward)}")
    group, scope = value.get("group"), value.get("out_of_scope", [])
    if group is not None and not isinstance(group, str):
        raise MalformedRecord(line, "group", f"must be a string, not {echo(group)}")
    if not isinstance(scope, list) or not all(isinstance(thread, str) for thread in scope):
        raise MalformedRecord(line, "out_of_scope", f"must be an array of threads, not {echo(scope)}")
    return session_id, Judgement(correct, reward, group, tuple(scope))
