"""What sessions earn by their answers, where the words of a model cost nothing. Pure: rows of the report in.

    needs no fold, made no call, broke the limit of tokens    +1 for the right answer, 0 else
    any other session                                         its reward by Equation 4

Such a session broke the limit by long answers alone: its documents fit. So a model that says more than `ok` can be set
beside one that was trained to be brief. Where a fold is needed, the documents alone break the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from acmserve.bench.agent.estimates import bounded_interval, student_interval

ALL, FOLD, KEEP = "all", "fold", "keep"
"""The parts of the tasks: all, those that need folds, and those that need none."""
LOWEST, HIGHEST = -1.0, 1.0
Row = Mapping[str, Any]
Session = Mapping[str, Any]


def by_answers(session: Session) -> float:
    """The reward of a session, where its words cost nothing."""
    if session["needs_fold"] or session["num_calls"] or session["violation"] != "tokens":
        return float(session["reward"])
    return float(session["is_right"])


def by_reward(session: Session) -> float:
    """Equation 4."""
    return float(session["reward"])


def answers_part(row: Row, part: str) -> tuple[float, list[float]]:
    """The mean by answers alone of one part of the tasks, and its 95 % interval."""
    earned = [by_answers(one) for one in row["sessions"] if part == ALL or one["needs_fold"] is not (part == KEEP)]
    return fmean(earned), bounded_interval(earned, LOWEST, HIGHEST)


def fell_beside(row: Row, other: Row, of: Callable[[Session], float]) -> bool:
    """Whether tasks that need no fold were lost, task by task: Student's interval of the difference lies below 0."""
    earned, others = (
        {one["seed"]: of(one) for one in played["sessions"] if not one["needs_fold"]} for played in (row, other)
    )
    differences = [earned[seed] - others[seed] for seed in sorted(earned)]
    return len(differences) > 1 and student_interval(differences)[1] < 0
