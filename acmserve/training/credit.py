"""What the completions of an export earned: a reward for each, and in a group an advantage.

    judgements ----> members (a session, or one sample of its prompt) --Equation 4--> reward
                     members of one group                             --Equation 3--> advantage of each completion

A member is what one line of the rewards is about. Its completions are those of a thread that has a line of its own, or
all others of a session. Equation 4 looks at a member with the completions that it stands behind. Knows no file.

Decision: a rollout without a line is an error. Left out in silence, it would shift the mean of its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from acmserve.errors import NotFound
from acmserve.training.advantage import fold_advantages, group_advantages
from acmserve.training.judgement import Judgement, Judgements
from acmserve.training.process_reward import process_rewards
from acmserve.training.reward import RewardLimits, outcome_reward
from acmserve.training.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Credit:
    """What one completion earned. `advantage` is None without a group.

    `is_shared`: all completions of the rollout have this advantage. FoldGRPO gives each its own.
    """

    reward: float
    group: str | None = None
    advantage: float | None = None
    is_shared: bool = True


Credits = Mapping[int, Credit]
"""The credit of each completion of a rollout."""


@dataclass(frozen=True, slots=True)
class _Member:
    place: int
    part: Rollout
    numbers: tuple[int, ...]
    judgement: Judgement
    reward: float


def give_credit(
    rollouts: Sequence[Rollout],
    judgements: Judgements,
    limits: RewardLimits | None = None,
    context_limit: int | None = None,
) -> list[Credits]:
    """The credits of each rollout. With `context_limit`, advantages are those of FoldGRPO.

    Raises `NotFound` for a session without a judgement, or for a judgement of a thread that its session lacks.
    """
    members = [one for place, rollout in enumerate(rollouts) for one in _members(place, rollout, judgements, limits)]
    found: list[dict[int, Credit]] = [{} for _ in rollouts]
    for group in dict.fromkeys(one.judgement.group for one in members):
        grouped = [one for one in members if one.judgement.group == group]
        for one, advantages in zip(grouped, _advantages(grouped, group, context_limit), strict=True):
            for number in one.numbers:
                found[one.place][number] = Credit(one.reward, group, advantages.get(number), context_limit is None)
    return list(found)


def _members(place: int, rollout: Rollout, judgements: Judgements, limits: RewardLimits | None) -> Iterator[_Member]:
    own = {thread: one for (name, thread), one in judgements.items() if name == rollout.session_id and thread}
    by_thread: dict[str | None, list[int]] = {None: [], **{thread: [] for thread in own}}
    for number, completion in rollout.completions.items():
        if completion.sample and completion.thread not in own:
            raise NotFound(
                "rewards",
                f"have no line for thread {completion.thread!a} of session {rollout.session_id!a}.",
                "Each sample of a prompt is a rollout of its own, and another answer.",
            )
        by_thread[completion.thread if completion.thread in own else None].append(number)
    for thread, numbers in by_thread.items():
        judgement = judgements.get((rollout.session_id, thread))
        if thread is not None and not numbers:
            raise NotFound("rewards", f"name thread {thread!a}, which session {rollout.session_id!a} lacks.")
        if judgement is None and (numbers or not own):
            raise NotFound("rewards", f"have no line for session {rollout.session_id!a}.", "Each session needs one.")
        if judgement is not None and thread is None and own and not numbers:
            raise NotFound(
                "rewards",
                f"have a line for session {rollout.session_id!a} that is about nothing: all threads have theirs.",
            )
        if judgement is not None:
            part = rollout.part(numbers)
            reward = judgement.reward
            if reward is None:
                reward = outcome_reward(part, is_correct=bool(judgement.correct), limits=limits)
            yield _Member(place, part, tuple(numbers), judgement, reward)


def _advantages(
    members: Sequence[_Member], group: str | None, context_limit: int | None
) -> Sequence[Mapping[int, float]]:
    if group is None:
        return [{} for _ in members]
    rewards = [one.reward for one in members]
    if context_limit is None:
        shared = group_advantages(rewards)
        return [dict.fromkeys(one.numbers, value) for one, value in zip(members, shared, strict=True)]
    processes = [
        process_rewards(one.part, context_limit, one.judgement.out_of_scope, one.judgement.failed) for one in members
    ]
    return fold_advantages(rewards, processes)
