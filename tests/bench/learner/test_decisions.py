"""The scripted policies: what each folds, what it says, and that a wrong reward ends the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.bench.learner.decisions import (
    POLICIES,
    UNKNOWN,
    check_reward,
    no_decisions,
    right_decisions,
    session_script,
    shuffled_decisions,
)
from acmserve.bench.learner.tasks import held_out_tasks, training_tasks
from acmserve.errors import AcmError


def count(text: str) -> int:
    return len(text.split())


def test_the_control_folds_as_much_and_the_wrong_document() -> None:
    tasks = training_tasks(20, count, 100)
    assert [task.needs_fold for task in tasks] == [True, False] * 10
    for task in tasks:
        task.check_integrity(count)
        right, shuffled = right_decisions(task), shuffled_decisions(task)
        if not task.needs_fold:
            assert right == shuffled == no_decisions(task)
            continue
        kept = right.index(False)
        assert task.answer in task.documents[kept]
        assert sum(right) == sum(shuffled) == len(right) - 1
        assert shuffled[kept]


def test_held_out_tasks_share_no_sentence_with_the_others() -> None:
    tasks, others = training_tasks(20, count, 100), held_out_tasks(20, count, 100)
    sentences, held_out = (
        {part for task in some for text in task.documents for part in text.split(".") if len(part.split()) > 4}
        for some in (tasks, others)
    )
    assert not sentences & held_out
    assert sentences


def test_a_short_task_asks_for_any_document_so_that_folding_all_but_the_last_loses() -> None:
    short = [task for task in training_tasks(60, count, 100) if not task.needs_fold]
    assert any(task.answer not in task.documents[-1] for task in short)
    assert max(sum(map(count, task.documents)) for task in short) < min(
        max(map(count, task.documents)) for task in training_tasks(60, count, 100) if task.needs_fold
    )


def test_a_script_answers_while_it_sees_the_document() -> None:
    task = training_tasks(1, count, 100)[0]
    assert session_script(task, right_decisions(task))[-1] == [task.answer]
    assert session_script(task, shuffled_decisions(task))[-1] == [UNKNOWN]
    assert session_script(task, no_decisions(task)) == [*[["ok"]] * len(task.documents), [task.answer]]


def test_a_session_that_earned_what_its_policy_does_not_ends_the_run() -> None:
    folding = training_tasks(1, count, 100)[0]
    keeping = replace(folding, needs_fold=False)
    for name, policy in POLICIES.items():
        for task, due in zip((folding, keeping), policy.earns, strict=True):
            for reward in due:
                check_reward(name, task, reward)
            told = " or ".join(f"{reward:g}" for reward in sorted(due))
            with pytest.raises(AcmError, match=f"the policy {name} earned .* seed 0, and {told} is due"):
                check_reward(name, task, 0.5)
    for name in ("always", "none"):
        assert sum(map(max, POLICIES[name].earns)) <= 0
