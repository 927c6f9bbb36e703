"""Scripted sessions on the real engine: every policy earns what it has to, and the rows of those asked for are kept."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from acmserve.bench.agent.scripted_server import TINY
from acmserve.bench.learner import stages
from acmserve.bench.learner.decisions import POLICIES, check_reward
from acmserve.bench.learner.sessions import SUITE_FILE
from acmserve.bench.learner.stages import write_rows
from acmserve.training.fold_or_fail import FoldOrFail


def test_all_policies_are_played_and_rows_are_written_of_what_is_missing(
    scripted_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks, one of each kind. Folds of the short one are refused, since they would not pay.

    The server is the suite's own. What starts one otherwise is asked for it here.
    """
    asked: list[tuple[str, tuple[str, ...]]] = []

    def shared(model: str, *, more_flags: tuple[str, ...]) -> AbstractContextManager[tuple[str, None]]:
        asked.append((model, more_flags))
        return nullcontext((scripted_server, None))

    monkeypatch.setattr(stages, "scripted_server", shared)
    checked: list[tuple[str, int]] = []

    def check(policy: str, task: FoldOrFail, reward: float) -> None:
        checked.append((policy, task.seed))
        check_reward(policy, task, reward)

    monkeypatch.setattr(stages, "check_reward", check)
    write_rows(tmp_path, ("right", "shuffled"), 2)
    assert checked == [(policy, seed) for policy in POLICIES for seed in range(2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["right.jsonl", "shuffled.jsonl"]
    right, shuffled = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("right", "shuffled")
    )
    assert right != shuffled
    assert min(len(right), len(shuffled)) >= 2
    before = (tmp_path / "right.jsonl").stat().st_mtime_ns
    write_rows(tmp_path, ("right",), 2)
    assert asked == [(TINY, ("--suite", str(SUITE_FILE)))], "what is there is not played again"
    assert (tmp_path / "right.jsonl").stat().st_mtime_ns == before
