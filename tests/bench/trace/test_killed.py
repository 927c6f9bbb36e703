"""A real benchmark with a real server is ended by SIGTERM: no process is left, and what was measured is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

from acmserve.bench.harness.options import partial_file
from tests.support.docs.pages import ROOT
from tests.support.server.running_server import START_SECONDS

NUM_REPETITIONS = 20


def test_a_killed_benchmark_leaves_no_process_and_a_partial_result(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    command = [sys.executable, "-m", "acmserve", "bench", "trace", "--model", "tiny", "--against", "exact"]
    command += ["--policies", "cwl", "--turns", "2", "--repetitions", str(NUM_REPETITIONS), "--json", str(file)]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("2 of "):
            break
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    said += process.communicate(timeout=START_SECONDS)[1].splitlines()
    assert process.returncode == 143, "\n".join(said)
    _, left = psutil.wait_procs(started, timeout=START_SECONDS)
    assert (len(started) >= 2, left) == (True, [])
    kept = json.loads(partial_file(file).read_text(encoding="utf-8"))
    assert (kept["partial"], kept["benchmark"], kept["ended_by"]) == (True, "trace", "SIGTERM")
    assert (kept["steps_done"], kept["steps"]) == (1, NUM_REPETITIONS)
    assert len(kept["answers"]) >= 3
    assert all(answer["computed_tokens"] > 0 and answer["first_token_seconds"] > 0 for answer in kept["answers"])
    assert not file.exists()
    assert "answers are kept in" in said[-1]
