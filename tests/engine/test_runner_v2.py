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


def rows_of(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What the program found, an edit each."""
    command = [sys.executable, "-m", "tests.support.engine.runner_v2", str(folder), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line.removeprefix("ROW ")) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    assert [row["edit"] for row in rows] == ["fold", "two holes", "insertion", "swap"]
    assert all("vllm.v1.worker.gpu.model_runner" in row["runner"] for row in rows)
    assert min(row["moved"] for row in rows) > 300
    return rows


@pytest.mark.parametrize("unturned", [False, True], ids=["moves", "control"])
def test_moved_kv_is_right(unturned: bool, tmp_path: Path) -> None:
    """A context is longer than a step here, so requests leap while they run. V2 loads counts for new requests only."""
    differences = {row["edit"]: row["distance"] for row in rows_of(tmp_path, *["unturned"] * unturned)}
    if unturned:
        assert max(differences.values()) > 100 * MAX_DIFFERENCE, differences
    else:
        assert max(differences.values()) <= MAX_DIFFERENCE, differences
