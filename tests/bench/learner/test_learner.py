"""What trains a small model to fold: its rows, its steps, and the folder in which it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acmserve.bench.learner.gate import RIGHT
from acmserve.bench.learner.judged import kept_sessions
from acmserve.bench.learner.sessions import PlayedSession
from acmserve.bench.learner.sft import SftOptions, SftRun, read_rows, row_loss, rows_of_step
from acmserve.bench.learner.stages import train
from acmserve.bench.learner.work_folder import WorkFolder, default_work
from acmserve.bench.models.model_folder import LEARNER, prepare_model
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.errors import AcmError
from acmserve.training.formats import IGNORED_LABEL

OPTIONS = SftOptions(6, rows_per_step=2, learning_rate=3e-2, warmup=1)


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
    loss, num_tokens = row_loss(made, row)
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


def test_a_trained_model_is_saved_in_float32_and_kept(tmp_path: Path) -> None:
    base = write_tiny_model(tmp_path / "base", 128)
    (tmp_path / "right.jsonl").write_text("\n".join(map(json.dumps, rows())), encoding="utf-8")
    made = train(tmp_path, "right", OPTIONS, base)
    assert len(made.losses) == OPTIONS.num_steps
    assert json.loads((made.folder / "config.json").read_text(encoding="utf-8"))["dtype"] == "float32"
    weights = LlamaForCausalLM.from_pretrained(made.folder, dtype="auto").state_dict()
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    before = LlamaForCausalLM.from_pretrained(base).state_dict()
    assert not all(torch.equal(weights[name], before[name]) for name in before)
    assert {path.name for path in tmp_path.iterdir()} == {"base", "right", "right.jsonl", "right-losses.json"}
    assert train(tmp_path, "right", OPTIONS, base) == made


def test_a_work_folder_is_of_one_recipe_and_adds_up_seconds(tmp_path: Path) -> None:
    for begun, ended in ((0, 60), (100, 190)):
        work = WorkFolder(tmp_path, {"steps": 24})
        with work.timed("training", iter((begun, ended)).__next__):
            pass
    assert work.minutes() == {"training": 2.5}
    with pytest.raises(AcmError, match=r"was made with steps 24, not 30\. Remove it, or name another"):
        WorkFolder(tmp_path, {"steps": 30})
    with pytest.raises(AcmError, match="was made with tasks None, not 8"):
        WorkFolder(tmp_path, {"steps": 24, "tasks": 8})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.json", '{"steps"'),
        ("settings.json", "[]"),
        ("seconds.json", ""),
        ("seconds.json", '{"training": "long"}'),
    ],
)
def test_a_work_folder_with_a_cut_or_odd_file_is_refused_by_its_name(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(
        AcmError, match=rf"{name} cannot be .+\. Remove {tmp_path}, or name another folder with --work\."
    ):
        WorkFolder(tmp_path, {"steps": 24})


@pytest.mark.parametrize(("name", "content"), [("judged.json", '{"commit": "aa'), ("judged.jsonl", '{"seed": 1, "nee')])
@pytest.mark.parametrize("is_empty", [False, True])
def test_judged_sessions_that_are_cut_are_refused_by_the_name_of_the_file(
    name: str, content: str, is_empty: bool, tmp_path: Path
) -> None:
    machine = {"commit": "a" * 40}
    (tmp_path / "right-judged.json").write_text(json.dumps(machine))
    (tmp_path / "right-judged.jsonl").write_text("")
    (tmp_path / f"right-{name}").write_text("" if is_empty else content)
    with pytest.raises(AcmError, match=rf"right-{name} cannot be .+ Remove .+right-judged\.json, and the sessions"):
        kept_sessions(tmp_path, "right", machine, list)


def test_rows_and_losses_that_are_cut_are_refused_by_name(tmp_path: Path) -> None:
    rows, losses = tmp_path / "right.jsonl", tmp_path / "right-losses.json"
    rows.write_text('{"input_ids": [1], "labels": [1]}\n{"input_ids": [1')
    with pytest.raises(AcmError, match=r"right\.jsonl cannot be gone on with: .+ Remove it, and its sessions"):
        read_rows(rows)
    (tmp_path / "right").mkdir()
    (tmp_path / "right" / "config.json").write_text("{}")
    losses.write_text("[0.1, 0.")
    with pytest.raises(AcmError, match=r"right-losses\.json cannot be gone on with: .+ Remove .+right, and the model"):
        train(tmp_path, "right", OPTIONS, tmp_path)


def test_judged_sessions_are_kept_on_their_commit_and_played_anew_on_another(tmp_path: Path) -> None:
    def play(seed: int) -> list[PlayedSession]:
        return [PlayedSession(seed, True, 3, 1.0, None, True, 2, 2, 0, (0, 1), (0, 1), 500, 600, "")]

    first, other = {"commit": "a" * 40}, {"commit": "b" * 40}
    kept = kept_sessions(tmp_path, "right", first, lambda: play(1))
    assert kept == tuple(play(1))
    assert kept_sessions(tmp_path, "right", first, lambda: play(2)) == kept
    assert kept_sessions(tmp_path, "right", other, lambda: play(3)) == tuple(play(3))
    assert kept_sessions(tmp_path, "right", other, lambda: play(4)) == tuple(play(3)), "they are of the new commit now"
    (tmp_path / "right-judged.json").unlink()
    assert kept_sessions(tmp_path, "right", other, lambda: play(5)) == tuple(play(5)), "nobody knows of which code"


def test_work_lies_where_models_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.delenv("ACMSERVE_HOME", raising=False)
    assert default_work() == Path("/b/acmserve/learner")
    monkeypatch.setenv("ACMSERVE_HOME", "/a")
    assert default_work() == Path("/a/acmserve/learner")


def test_the_trained_model_has_a_name_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACMSERVE_HOME", str(tmp_path))
    with pytest.raises(AcmError, match="not trained here; `acmserve bench learner --train-only`"):
        prepare_model(LEARNER)
    folder = default_work() / RIGHT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert prepare_model(LEARNER) == folder == tmp_path / "acmserve" / "learner" / "right"
