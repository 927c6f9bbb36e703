"""Why the numbers of `bench learner` would say nothing. Reads rows of the report, and knows no server.

trained / untrained    its interval lies above: on all tasks, and on those that need folds
trained / control      its interval lies above, on tasks that need folds: it learned where, and not only how
trained / constant     its interval lies above 0, which neither always folding nor never folding reaches
trained / control      where no fold helps, it did not fall: task by task, by its reward
trained / untrained    where no fold helps, it did not fall: task by task, by its answers alone
server / weights       each sampled token is the one that the weights say

Decision: the control says as little as the trained model. The untrained one breaks limits with long answers, so by its
reward everything would rise above it, a model without one right answer included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.learner.answers import ALL, FOLD, KEEP, answers_part, by_answers, by_reward, fell_beside

RIGHT, SHUFFLED, UNTRAINED = "right", "shuffled", "untrained"
CONSTANT = 0.0
"""What `always` and `none` do not exceed, over as many tasks of either kind."""


def find_failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each comparison that failed."""
    intervals = {(row["model"], name): part["reward_interval"] for row in rows for name, part in row["parts"].items()}

    def rises(part: str, other: str) -> bool:
        return bool(intervals[RIGHT, part][0] > intervals[other, part][1])

    def told(part: str, other: str) -> str:
        return f"on {part} tasks the trained model earns {intervals[RIGHT, part]}, the {other} {intervals[other, part]}"

    failures = [told(part, UNTRAINED) for part in (ALL, FOLD) if not rises(part, UNTRAINED)]
    if not rises(FOLD, SHUFFLED):
        failures.append(f"{told(FOLD, SHUFFLED)}: the control rose as it did")
    if intervals[RIGHT, ALL][0] <= CONSTANT:
        failures.append(f"the trained model earns {intervals[RIGHT, ALL]}, and who decides nothing {CONSTANT:g}")
    models = {row["model"]: row for row in rows}
    if fell_beside(models[RIGHT], models[SHUFFLED], by_reward):
        failures.append(f"{told(KEEP, SHUFFLED)}: it fell where no fold helps")
    if fell_beside(models[RIGHT], models[UNTRAINED], by_answers):
        ours, theirs = (answers_part(models[name], KEEP)[0] for name in (RIGHT, UNTRAINED))
        earned = f"the trained model earns {ours:.2f} on {KEEP} tasks, the untrained {theirs:.2f}"
        failures.append(f"by answers alone {earned}: it fell where no fold helps")
    said = [(row["model"], row["agreement"]) for row in rows]
    others = [(name, one["num_other"], one["num_tokens"]) for name, one in said if one["num_other"]]
    return [*failures, *(f"{name}: the server said {num} of {total} tokens otherwise" for name, num, total in others)]
