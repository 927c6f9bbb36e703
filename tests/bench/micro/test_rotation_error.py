"""The law behind the bound on repeated moves: each hop adds one rounding, and roundings add up as random steps do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acmserve.bench.micro.rotation_error import main, measure
from acmserve.plan.planner import MAX_ROTATIONS


def test_errors_grow_with_the_root_of_the_rotations() -> None:
    for row in measure("bfloat16", num_rotations=16, num_keys=64, bound=MAX_ROTATIONS):
        assert row.chained == pytest.approx(row.cached * (row.num_rotations + 1) ** 0.5, rel=0.1)
        assert row.original == pytest.approx(row.cached * 2**0.5, rel=0.1)
        assert row.bounded <= 3.3 * row.cached, "what plan/planner.py promises of MAX_ROTATIONS"


def test_the_table_and_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rotations", "2", "--keys", "8", "--json", str(tmp_path / "rotations.json")]) == 0
    rows = json.loads((tmp_path / "rotations.json").read_text())["rows"]
    assert [(row["kv"], row["num_rotations"]) for row in rows[:2]] == [("float32", 1), ("float32", 2)]
    assert ("bfloat16", 2) in [(row["kv"], row["num_rotations"]) for row in rows]
    assert "fp8 e5m2" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--rotations", "0"])
