"""The law behind the bound on repeated moves: each hop adds one rounding, and roundings add up as random steps do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acmserve.bench.micro import rotation_error
from acmserve.bench.micro.rotation_error import TYPES, main, measure
from acmserve.kernels.layout import name_of_type
from acmserve.plan.rules.rotations import MAX_ROTATIONS, MAX_ROTATIONS_BY_TYPE, bound_of


def test_errors_grow_with_the_root_of_the_rotations() -> None:
    for row in measure("bfloat16", num_rotations=16, num_keys=64):
        assert row.chained == pytest.approx(row.cached * (row.num_rotations + 1) ** 0.5, rel=0.1)
        assert row.bounded <= 3.3 * row.cached, "what plan/rules/rotations.py promises of MAX_ROTATIONS"


def test_the_bounds_of_fp8_are_what_the_measurement_allows() -> None:
    """e4m3 at its bound is nearer to the exact key than e5m2 is without a move. One move more would not be by much."""
    bounds = {kv: MAX_ROTATIONS_BY_TYPE[name_of_type(dtype)] for kv, dtype in TYPES.items()}
    assert bounds == {"float32": 8, "bfloat16": 8, "float16": 8, "fp8 e4m3": 2, "fp8 e5m2": 1}
    e4m3, e5m2 = (measure(kv, num_rotations=8, num_keys=256) for kv in ("fp8 e4m3", "fp8 e5m2"))
    chained = {row.num_rotations: row.chained for row in e4m3}
    assert chained[bounds["fp8 e4m3"]] < 0.85 * e5m2[0].cached < chained[3]
    assert chained[8] > 1.2 * e5m2[0].cached, "the bound of 16 bits would be worse than a type that nobody prefers"
    assert max(row.bounded for row in e4m3) < 0.85 * e5m2[0].cached
    assert e5m2[0].chained < 1.5 * e5m2[0].cached


def test_keys_in_several_types_have_the_bound_of_the_coarsest() -> None:
    assert bound_of(["bfloat16", "float8_e4m3fn"]) == MAX_ROTATIONS_BY_TYPE["float8_e4m3fn"]
    assert bound_of([]) == MAX_ROTATIONS


def test_the_table_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rotation_error, "NUM_KEYS", 8)
    assert main(["--json", str(tmp_path / "rotations.json")]) == 0
    report = json.loads((tmp_path / "rotations.json").read_text())
    rows = report["rows"]
    assert report["machine"].keys() >= {"commit", "changed", "date", "cpu"}
    assert [(row["kv"], row["num_rotations"]) for row in rows[:2]] == [("float32", 1), ("float32", 2)]
    assert ("bfloat16", 64) in [(row["kv"], row["num_rotations"]) for row in rows]
    assert "fp8 e5m2" in capsys.readouterr().out
