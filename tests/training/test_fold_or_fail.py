"""The task that needs folds: who keeps all fails, who folds succeeds, and who folds and errs earns nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from acmserve.errors import IntegrityError, InvalidRequest
from acmserve.training.fold_or_fail import FoldOrFail, make_task
from acmserve.training.record import read_rollout
from acmserve.training.rollout import Rollout
from tests.support.training.sessions import HEADER, Session

MARKER = "[folded f1a2b3]"
SMALL: dict[str, Any] = {"document_tokens": 60}


def num_words(text: str) -> int:
    return len(text.split())


def play(task: FoldOrFail, *, folds: bool) -> Rollout:
    """A model that answers each turn with a few words, and folds what it has read, or does not."""
    session = Session(random.Random(task.seed))
    said: list[list[int]] = []
    parent = None
    for turn in task.turns:
        said.append([7] * num_words(turn))
        one = session.serve(said, [("fold_fragment", "fold")] if folds else [], parent=parent, num_tokens=3)
        if folds:
            said[-1] = [8] * num_words(MARKER)
        said.append([*HEADER, *one.token_ids])
        parent = one.number
    return read_rollout(session.record())


@pytest.mark.parametrize("asks", ["last", "any"])
def test_only_folding_and_a_right_answer_earn_a_reward(asks: Any) -> None:
    for seed in range(50):
        task = make_task(seed, num_words, asks=asks, **SMALL)
        wrong = next(iter(task.codes - {task.answer}))
        folded, kept = play(task, folds=True), play(task, folds=False)
        assert [task.reward(folded, text) for text in (task.answer, wrong)] == [1.0, 0.0]
        assert [task.reward(kept, text) for text in (task.answer, wrong)] == [-1.0, -1.0]


def test_where_all_documents_fit_no_fold_is_needed() -> None:
    for seed in range(20):
        task = make_task(seed, num_words, fitting=None, asks="any", overhead=200, **SMALL)
        assert not task.needs_fold
        assert task.reward(play(task, folds=False), task.answer) == 1.0
        with pytest.raises(IntegrityError):
            replace(task, needs_fold=True).check_integrity(num_words)
        with pytest.raises(IntegrityError):
            replace(task, max_tokens=task.max_tokens - 1).check_integrity(num_words)


def test_a_task_is_made_of_its_seed_alone() -> None:
    tasks = [make_task(seed, num_words, **SMALL) for seed in (1, 1, 2)]
    assert tasks[0] == tasks[1] != tasks[2]
    assert len({make_task(seed, num_words, **SMALL).answer for seed in range(100)}) > 90


def test_the_answer_stands_in_one_document_and_no_filler_looks_like_one() -> None:
    asked = set()
    for seed in range(50):
        task = make_task(seed, num_words, asks="any", **SMALL)
        (place,) = [number for number, text in enumerate(task.documents) if task.answer in text]
        asked.add(place)
        assert (
            sum(word.strip(".").isdigit() and len(word.strip(".")) == 4 for word in " ".join(task.documents).split())
            == 4
        )
        assert make_task(seed, num_words, **SMALL).answer in task.documents[-1]
    assert asked == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("text", "is_right"),
    [("{}", True), ("The code is {}.", True), ("{} or {}", True), ("1{}", False), ("", False), ("{} 9999", False)],
)
def test_an_answer_is_judged_by_the_code_alone(text: str, is_right: bool) -> None:
    task = replace(make_task(0, num_words, **SMALL), answer="4821")
    assert task.is_right(text.replace("{}", "4821")) is is_right


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_documents": 1}, "num_documents: must be from 2 to 10, not 1"),
        ({"fitting": 4}, "fitting: must be above 1 and below 4 documents, not 4"),
        ({"fitting": 1}, "fitting"),
        ({"document_tokens": 5}, "document_tokens: must be at least"),
    ],
)
def test_a_task_that_needs_no_fold_or_has_no_solution_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make_task(0, num_words, **SMALL | options)


def test_a_broken_task_is_found() -> None:
    task = make_task(0, num_words, **SMALL)
    for broken in (replace(task, max_tokens=1000), replace(task, max_tokens=50), replace(task, answer="none")):
        with pytest.raises(IntegrityError):
            broken.check_integrity(num_words)
