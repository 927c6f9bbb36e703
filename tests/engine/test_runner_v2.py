"""Moves on model runner V2, the runner of GPUs: on a CPU here, with its Triton kernels in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAX_DIFFERENCE = 1e-3


Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What the program found, in its order."""
    command = [sys.executable, "-m", "tests.support.engine.runner_v2", str(tmp_path_factory.mktemp("v2"))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: Rows = {name: [] for name in ("turned", "unturned", "holes", "beside", "wrong")}
    for line in done.stdout.splitlines():
        if line.startswith("ROW "):
            row = json.loads(line.removeprefix("ROW "))
            found[row["engine"]].append(row)
    return found


def test_moved_kv_is_right(rows: Rows) -> None:
    """A context is longer than a step here, so requests leap while they run. V2 loads counts for new requests only."""
    some = rows["turned"]
    assert [row["edit"] for row in some] == ["fold", "two holes", "insertion", "swap"]
    assert all("vllm.v1.worker.gpu.model_runner" in row["runner"] for row in some)
    assert min(row["moved"] for row in some) > 300
    differences = {row["edit"]: row["distance"] for row in some}
    assert max(differences.values()) <= MAX_DIFFERENCE, differences


def test_keys_that_do_not_turn_are_found_out(rows: Rows) -> None:
    (row,) = rows["unturned"]
    assert "vllm.v1.worker.gpu.model_runner" in row["runner"]
    assert row["moved"] > 300
    assert row["distance"] > 100 * MAX_DIFFERENCE


def test_many_holes_are_one_forward_pass(rows: Rows) -> None:
    """It answers as a step for each hole does, and computes as many tokens."""
    assert [row["holes"] for row in rows["holes"]] == [2, 16]
    for row in rows["holes"]:
        together, apart = row["steps"]
        assert together == 1
        assert apart > row["holes"]
        assert len(set(row["tokens"])) == 1
        assert row["same"], "the receipts"
        assert row["distance"] <= MAX_DIFFERENCE, row


def test_a_stranger_beside_a_pass_gets_its_own_answer(rows: Rows) -> None:
    (row,) = rows["beside"]
    assert row["same"]
    assert row["distance"] <= MAX_DIFFERENCE


def test_a_pass_laid_out_wrong_shows(rows: Rows) -> None:
    """Negative control: holes that see what is behind them, and holes that stand elsewhere."""
    assert [row["part"] for row in rows["wrong"]] == ["split_rows", "_place_tokens"]
    assert all(row["distance"] > 100 * MAX_DIFFERENCE for row in rows["wrong"]), rows["wrong"]
