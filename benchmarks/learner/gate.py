"""Why the numbers of `bench learner` would say nothing. Reads rows of the report, and knows no server.

trained / untrained    its interval lies above: on all tasks, and on those that need folds
trained / control      its interval lies above, on tasks that need folds: it learned where, and not only how
trained / constant     its interval lies above 0, which neither always folding nor never folding reaches
trained / untrained    where no fold helps, it did not fall
server / weights       each sampled token is the one that the weights say
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.learner.judged import ALL, FOLD, KEEP

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
    if intervals[RIGHT, KEEP][1] < intervals[UNTRAINED, KEEP][0]:
        failures.append(f"{told(KEEP, UNTRAINED)}: it fell where no fold helps")
    said = [(row["model"], row["agreement"]) for row in rows]
    others = [(name, one["num_other"], one["num_tokens"]) for name, one in said if one["num_other"]]
    return [*failures, *(f"{name}: the server said {num} of {total} tokens otherwise" for name, num, total in others)]
