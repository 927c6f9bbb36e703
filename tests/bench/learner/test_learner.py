"""What trains a small model to fold: its rows, its steps, its scripted decisions, and the gate of its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acmserve.bench.learner.decisions import no_decisions, right_decisions, shuffled_decisions
from acmserve.bench.learner.main import find_failures
from acmserve.bench.learner.sft import SftOptions, SftRun, row_loss, rows_of_step
from acmserve.bench.learner.tasks import held_out_tasks, training_tasks
from acmserve.errors import AcmError
from acmserve.training.formats import IGNORED_LABEL

OPTIONS = SftOptions(6, rows_per_step=2, learning_rate=3e-2, warmup=1, bfloat16=False)


def model() -> Any:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_attention_heads=2, num_key_value_heads=1, **sizes))


def rows() -> list[dict[str, list[int]]]:
    """Three prompts, each with an answer of two tokens that has a loss."""
    made = []
    for number in range(3):
        ids = [number, 5, 6, 7, 10 + number, 20 + number, 9]
        made.append({"input_ids": ids, "labels": [IGNORED_LABEL] * 4 + ids[4:6] + [IGNORED_LABEL]})
    return made


def test_each_row_comes_once_before_any_comes_again() -> None:
    places = [place for step in range(9) for place in rows_of_step(3, OPTIONS, step)]
    assert all(sorted(places[at : at + 3]) == [0, 1, 2] for at in range(0, len(places), 3))
    assert places != [0, 1, 2] * 6


def test_a_loss_is_that_of_the_answers_tokens() -> None:
    made, row = model(), rows()[1]
    loss, num_tokens = row_loss(made, row, bfloat16=False)
    labels = torch.tensor([row["labels"]])
    whole = made(input_ids=torch.tensor([row["input_ids"]]), labels=labels).loss
    assert num_tokens == 2
    assert loss.item() == pytest.approx(2 * whole.item(), rel=1e-5)


def test_training_lowers_the_loss_and_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    whole = SftRun(model(), rows(), OPTIONS, tmp_path / "whole.pt")
    *_, progress = whole.steps()
    assert progress.losses[-1] < 0.8 * progress.losses[0]
    assert progress.num_tokens == 6 * 4
    first = SftRun(model(), rows(), OPTIONS, tmp_path / "cut.pt")
    for done in first.steps():
        if done.num_steps == 3:
            first.save()
            break
    again = SftRun(model(), rows(), OPTIONS, tmp_path / "cut.pt")
    assert again.progress.num_steps == 3
    *_, resumed = again.steps()
    assert resumed.losses == pytest.approx(progress.losses, rel=1e-6)
    with pytest.raises(AcmError, match="is of other rows or options"):
        SftRun(model(), rows()[:2], OPTIONS, tmp_path / "cut.pt")
    with pytest.raises(AcmError, match="no rows to train on"):
        SftRun(model(), [], OPTIONS, tmp_path / "none.pt")


def test_the_control_folds_as_much_and_the_wrong_document() -> None:
    def count(text: str) -> int:
        return len(text.split())

    tasks = training_tasks(20, count, 100)
    for task in tasks:
        right, shuffled = right_decisions(task), shuffled_decisions(task)
        kept = right.index(False)
        assert task.answer in task.documents[kept]
        assert sum(right) == sum(shuffled) == len(right) - 1
        assert shuffled[kept]
        assert not any(no_decisions(task))
        task.check_integrity(count)
    sentences = {part for task in tasks for text in task.documents for part in text.split(".")}
    held_out = {part for task in held_out_tasks(20, count, 100) for text in task.documents for part in text.split(".")}
    assert not {part for part in sentences & held_out if len(part.split()) > 4}


def row(name: str, low: float, high: float) -> dict[str, Any]:
    return {"model": name, "reward_interval": [low, high]}


def test_a_gain_within_the_interval_is_no_gain() -> None:
    before, control = row("untrained", -1.0, -0.9), row("shuffled", -0.5, 0.0)
    assert find_failures([before, row("right", 0.2, 0.8), control]) == []
    (none,) = find_failures([before, row("right", -0.95, 0.8), row("shuffled", -1.0, -0.96)])
    assert "the trained model earns" in none
    (won,) = find_failures([before, row("right", -0.4, 0.8), control])
    assert "the control earns" in won
