"""Scripted sessions on the real engine: every policy earns what it has to, and the rows of those asked for are kept."""

from __future__ import annotations

import json
from pathlib import Path

from acmserve.bench.learner.decisions import POLICIES
from acmserve.bench.learner.stages import write_rows


def test_all_policies_are_played_and_rows_are_written_of_what_is_missing(tmp_path: Path) -> None:
    """Two tasks, one of each kind. Folds of the short one are refused, since they would not pay."""
    write_rows(tmp_path, ("right", "shuffled"), 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["right.jsonl", "shuffled.jsonl"]
    assert {"right", "shuffled"} < set(POLICIES)
    right, shuffled = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("right", "shuffled")
    )
    assert right != shuffled
    assert min(len(right), len(shuffled)) >= 2
    before = (tmp_path / "right.jsonl").stat().st_mtime_ns
    write_rows(tmp_path, ("right",), 2)
    assert (tmp_path / "right.jsonl").stat().st_mtime_ns == before
