"""Answers that a way could lose or win: those of cases in which it moved something. Pure numbers.

case that moved    its answers that are right under `exact` can be lost, and the wrong ones can be won
any other case     was computed as under `exact`, so its answers tell nothing of the way
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.bench.tasks.run import EXACT


@dataclass(frozen=True, slots=True)
class MovedAnswers:
    """Of `num_questions` in `num_cases`, those in which something moved: right and wrong ones under `exact`.

    `num_lost` counts right ones that are wrong under the way, and `num_won` wrong ones that are right.
    """

    num_cases: int
    num_questions: int
    num_moved_cases: int
    num_right: int
    num_wrong: int
    num_lost: int
    num_won: int

    @property
    def num_exact(self) -> int:
        """Answers of the other cases."""
        return self.num_questions - self.num_right - self.num_wrong

    @property
    def lost(self) -> str:
        """For people."""
        return f"{self.num_lost} of {self.num_right}"

    @property
    def won(self) -> str:
        """For people."""
        return f"{self.num_won} of {self.num_wrong}"


def count_moved_answers(records: Iterable[Mapping[str, Any]], name: str) -> MovedAnswers:
    """Of one way. A case counts where its receipt has moved tokens."""
    held = list(records)
    moved = [record for record in held if record["variants"][name]["moved_tokens"]]
    pairs = [
        pair
        for record in moved
        for pair in zip(record["variants"][EXACT]["right"], record["variants"][name]["right"], strict=True)
    ]
    return MovedAnswers(
        num_cases=len(held),
        num_questions=sum(len(record["variants"][EXACT]["right"]) for record in held),
        num_moved_cases=len(moved),
        num_right=sum(before > 0 for before, _ in pairs),
        num_wrong=sum(before == 0 for before, _ in pairs),
        num_lost=sum(before > after for before, after in pairs),
        num_won=sum(before < after for before, after in pairs),
    )
