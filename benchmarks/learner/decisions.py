"""What a scripted policy decides in a session of *fold or fail*, what it says, and what it has to earn.

    right      every document but the last one where all of them do not fit, and none where they do
    shuffled   as many in each session, but not the same: an early one stays, and the last one is folded
    always     every document
    none       no document

Pure. A policy answers with the code while it sees the document, and owns up otherwise.

Decision: the fold that does not help is the control. It has the same calls, the same number of them, and the same
texts. So a model that gains by `right` alone has learned where to fold, and not only how.

Decision: what a policy earns is known beforehand, and checked before anything is trained. So a limit that is too wide,
or a call that fails, ends the run. Over as many tasks of either kind, neither `always` nor `none` earns more than 0.

A short document may cost less than its fold. Then the fold is refused, its calls stay, and they break the limit of a
task that needs none. So `always` loses there, or gives no answer. It never earns more than 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from acmserve.bench.harness.workloads import as_hermes
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall
from acmserve.errors import AcmError
from acmserve.training.fold_or_fail import READ, FoldOrFail

SAID = "ok"
UNKNOWN = "I do not know."
Decisions = tuple[bool, ...]
"""For each document whether it is folded once it is read."""


def right_decisions(task: FoldOrFail) -> Decisions:
    """Fold what is not asked for, where there is no room for it."""
    return tuple(task.needs_fold and task.answer not in document for document in task.documents)


def shuffled_decisions(task: FoldOrFail) -> Decisions:
    """Keep another document than the one that is asked for. The seed of the task draws it."""
    right = right_decisions(task)
    if not any(right):
        return right
    kept = random.Random(f"shuffled {task.seed}").choice([place for place, folds in enumerate(right) if folds])
    return tuple(place != kept for place in range(len(right)))


def all_decisions(task: FoldOrFail) -> Decisions:
    """Fold everything."""
    return (True,) * len(task.documents)


def no_decisions(task: FoldOrFail) -> Decisions:
    """Fold nothing."""
    return (False,) * len(task.documents)


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """`earns` are its possible rewards in a task that needs folds, and in one that needs none."""

    decide: Callable[[FoldOrFail], Decisions]
    earns: tuple[frozenset[float], frozenset[float]]


_WINS, _LOSES, _WINS_NOTHING = frozenset({1.0}), frozenset({-1.0}), frozenset({-1.0, 0.0})
POLICIES: Mapping[str, ScriptedPolicy] = {
    "right": ScriptedPolicy(right_decisions, (_WINS, _WINS)),
    "shuffled": ScriptedPolicy(shuffled_decisions, (_LOSES, _WINS)),
    "always": ScriptedPolicy(all_decisions, (_LOSES, _WINS_NOTHING)),
    "none": ScriptedPolicy(no_decisions, (_LOSES, _WINS)),
}
"""The scripted policies by name."""


def check_reward(policy: str, task: FoldOrFail, reward: float) -> None:
    """Raise AcmError where a scripted session did not earn what its policy has to."""
    due = POLICIES[policy].earns[not task.needs_fold]
    if reward not in due:
        kind = "a task that needs folds" if task.needs_fold else "a task that needs none"
        told = " or ".join(f"{one:g}" for one in sorted(due))
        raise AcmError(f"the policy {policy} earned {reward:g} in {kind}, seed {task.seed}, and {told} is due")


def session_script(task: FoldOrFail, decisions: Decisions) -> list[list[str]]:
    """What is said in each turn, one line for each completion."""
    state, turns, answer = SessionState(), [], task.answer
    for document, folds in zip(task.documents, decisions, strict=True):
        turns.append([SAID])
        if folds:
            fragment_id, state = state.new_id("f")
            begins = document[: document.index(".") + 1]
            cut = ToolCall("fragment_context", {"start_marker": begins, "end_marker": READ})
            fold = ToolCall("fold_fragment", {"fragment_id": fragment_id})
            turns[-1] = [as_hermes([cut]), as_hermes([fold]), SAID]
            answer = UNKNOWN if task.answer in document else answer
    return [*turns, [answer]]
