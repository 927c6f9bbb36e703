"""The tool loop with a model that decides by itself: it says what the script of the same task says.

The model is the one that `make train` left in the work folder, and plays tasks that it has not seen. Weights are in no
commit. So where there are none the tests are skipped, and `make learned-loop` trains a model on the very tasks of the
test. That one shows that the loop serves decisions of a model, and nothing of what is learned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from acmserve.bench.learner.decisions import right_decisions, session_script
from acmserve.bench.learner.sessions import SessionPlayer
from acmserve.bench.learner.sft import SftOptions
from acmserve.bench.learner.stages import TrainedModel, count_tokens_by, served, train, write_rows
from acmserve.bench.learner.tasks import held_out_tasks, training_tasks
from acmserve.bench.learner.work_folder import default_work
from acmserve.models.smollm2 import prepare
from acmserve.training.fold_or_fail import FoldOrFail
from acmserve.training.record import read_rollout

POLICY = "right"
TRAINED = default_work() / POLICY
SMALL = SftOptions(16, rows_per_step=2, learning_rate=2e-4, warmup=2)
pytestmark = pytest.mark.skipif(
    not TRAINED.exists() and "ACMSERVE_LEARNED_LOOP" not in os.environ,
    reason="no trained model: `make train`, or `make learned-loop`, which trains a small one",
)


@dataclass(frozen=True)
class Learned:
    """A served model that was trained, and tasks of each kind for it."""

    folder: Path
    player: SessionPlayer
    tasks: list[FoldOrFail]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learned]:
    tasks_of: Callable[..., list[FoldOrFail]] = held_out_tasks
    model = TrainedModel(POLICY, TRAINED)
    if not TRAINED.exists():
        work, tasks_of = tmp_path_factory.mktemp("learner"), training_tasks
        write_rows(work, (POLICY,), 2)
        model = train(work, POLICY, SMALL, prepare())
    with served(model) as player:
        yield Learned(model.folder, player, tasks_of(2, count_tokens_by(model.folder), player.count_prompt()))


@pytest.mark.parametrize("needs_fold", [True, False], ids=["long", "short"])
def test_the_model_says_what_the_script_says(learned: Learned, needs_fold: bool) -> None:
    """Calls of tools with their arguments, and every answer: nobody asks for a call."""
    (task,) = [task for task in learned.tasks if task.needs_fold is needs_fold]
    played = learned.player.play("learned", task)
    tokenizer = AutoTokenizer.from_pretrained(learned.folder)
    completions = read_rollout(played.record.splitlines()).completions.values()
    said = [tokenizer.decode(one.token_ids.tolist(), skip_special_tokens=True) for one in completions]
    assert said == [line for turn in session_script(task, right_decisions(task)) for line in turn]
    assert played.folds == played.needed
    assert played.num_calls == played.num_valid == 2 * len(played.needed)
    assert played.reward == 1.0
