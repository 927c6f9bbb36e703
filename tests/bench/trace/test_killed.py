"""A real benchmark is ended by SIGTERM: no process is left, and what was measured is kept.

In the suite its server is a small one in this process. `make servers` lets it start a real one, which has to end too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from acmserve.bench.harness.options import partial_file
from acmserve.bench.provenance.machine_use import is_busy
from tests.support.docs.pages import ROOT
from tests.support.server.fake_openai import Answer, openai_server
from tests.support.server.running_server import START_SECONDS

IS_REAL = "ACMSERVE_SERVERS" in os.environ
NUM_REPETITIONS = 20 if IS_REAL else 4
"""A real one is asked to end while many are left. Here the second repetition waits for the end."""
NUM_ANSWERS = 3
"""Of one repetition: the opening, and two turns."""
RECEIPT = {"kept_tokens": 3, "moved_tokens": 0, "computed_tokens": 4}
CHUNKS: tuple[dict[str, Any], ...] = (
    {"choices": [{"index": 0, "delta": {"content": "Noted."}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "acm": {"receipt": RECEIPT}},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
)


@pytest.fixture
def is_ended() -> threading.Event:
    """Set once the benchmark was asked to end."""
    return threading.Event()


@pytest.fixture
def against(is_ended: threading.Event) -> Iterator[str]:
    """What is measured: acmserve itself, or a server whose answers of the second repetition wait for the end."""
    if IS_REAL:
        yield "exact"
        return
    num_asked = 0

    def answer(path: str, body: Any, _: str | None) -> Answer:
        nonlocal num_asked
        if body is None:
            return 200, {"data": [{"id": "m"}]}
        num_asked += 1
        if num_asked > NUM_ANSWERS:
            is_ended.wait()
        return 200, "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n\n"

    with openai_server(answer) as url:
        yield url


def test_a_killed_benchmark_leaves_no_process_and_a_partial_result(
    against: str, is_ended: threading.Event, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    command = [sys.executable, "-m", "acmserve", "bench", "trace", "--model", "tiny", "--against", against]
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
    started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    is_ended.set()
    said += process.communicate(timeout=START_SECONDS)[1].splitlines()
    assert process.returncode == 143, "\n".join(said)
    _, left = psutil.wait_procs(started, timeout=START_SECONDS)
    assert (len(started) >= 2 * IS_REAL, left) == (True, [])
    kept = json.loads(partial_file(file).read_text(encoding="utf-8"))
    assert (kept["partial"], kept["benchmark"], kept["ended_by"]) == (True, "trace", "SIGTERM")
    assert 1 <= kept["steps_done"] < kept["steps"] == NUM_REPETITIONS
    assert len(kept["answers"]) >= NUM_ANSWERS
    assert all(answer["computed_tokens"] > 0 and answer["first_token_seconds"] > 0 for answer in kept["answers"])
    assert not file.exists()
    assert "answers are kept in" in said[-1]
    # The same command goes on behind the first repetition.
    assert [one["number"] for one in kept["whole_repetitions"]] == list(range(kept["steps_done"]))
    if IS_REAL:
        return
    for one in kept["whole_repetitions"]:
        one["use"] |= {"other_share": 0.0, "stolen_share": 0.0}  # the suite is not alone on its machine
    partial_file(file).write_text(json.dumps(kept), encoding="utf-8")
    begun = subprocess.run([*command, "--resume"], env=environ, capture_output=True, text=True, check=False)
    assert begun.returncode == 0, begun.stderr
    numbers = [line.partition(" of ")[0] for line in begun.stderr.splitlines() if f" of {NUM_REPETITIONS}: " in line]
    assert numbers == [str(number) for number in range(kept["steps_done"] + 1, NUM_REPETITIONS + 1)]
    whole = json.loads(file.read_text(encoding="utf-8"))
    assert whole["repetitions"] == NUM_REPETITIONS
    assert partial_file(file).exists() is is_busy(whole), "what others disturbed can be measured again"
