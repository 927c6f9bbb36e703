"""What a scripted policy decides in a session of *fold or fail*, and what it says.

    right      every document but the last one, which the question is about
    shuffled   as many, but not the same: an early one stays, and the last one is folded

Pure. Decision: the fold that does not help is the control. It has the same calls, the same number of them, and the same
texts, so a model that gains by `right` alone has learned where to fold, and not only how.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from acmserve.bench.harness.workloads import as_hermes
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall
from acmserve.training.fold_or_fail import FoldOrFail

READ = "Say ok when you have read it."
SAID = "ok"
Decisions = tuple[bool, ...]
"""For each document whether it is folded once it is read."""


def right_decisions(task: FoldOrFail) -> Decisions:
    """Fold what is not asked for."""
    return tuple(task.answer not in document for document in task.documents)


def shuffled_decisions(task: FoldOrFail) -> Decisions:
    """Keep another document than the one that is asked for. The seed of the task draws it."""
    right = right_decisions(task)
    kept = random.Random(f"shuffled {task.seed}").choice([place for place, folds in enumerate(right) if folds])
    return tuple(place != kept for place in range(len(right)))


def no_decisions(task: FoldOrFail) -> Decisions:
    """Fold nothing."""
    return (False,) * len(task.documents)


POLICIES: Mapping[str, Callable[[FoldOrFail], Decisions]] = {
    "right": right_decisions,
    "shuffled": shuffled_decisions,
    "none": no_decisions,
}
"""The scripted policies by name."""


def session_script(task: FoldOrFail, decisions: Decisions) -> list[list[str]]:
    """What is said in each turn, one line for each completion."""
    state, turns = SessionState(), []
    for document, folds in zip(task.documents, decisions, strict=True):
        turns.append([SAID])
        if folds:
            fragment_id, state = state.new_id("f")
            begins = document[: document.index(".") + 1]
            cut = ToolCall("fragment_context", {"start_marker": begins, "end_marker": READ})
            fold = ToolCall("fold_fragment", {"fragment_id": fragment_id})
            turns[-1] = [as_hermes([cut]), as_hermes([fold]), SAID]
    return [*turns, [task.answer]]
