"""Conversations of real agents in full text, out of the wheel of the PyPI package `agentperf-local` (Apache-2.0).

    manifest*.json       the tasks in their order, each with its trace
    traces/NAME.jsonl    a line for each turn: its whole prompt, the tools, and the time that they took behind it

    turn 1   [system][user][99 calls are left]
    turn 2   [system][user][said][result][98 calls are left]     what turn 1 ended with is gone: it was fleeting

The texts are not ours. They stay in the wheel, which pip downloads once into the cache, and nothing of them is
committed. Decision: the wheel is read and not installed, since it asks for a newer Python than acmserve does.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.recording import RecordedStep, Recording
from acmserve.context.transcript.message import Message
from acmserve.errors import AcmError
from acmserve.models.packaged import cache_folder

AGENTPERF = "agentperf"
REQUIREMENT = "agentperf-local==0.3.4"
SHA256 = "a2562d0cc5449fa801d45053a80f634d4b23e540f3d78b3beac14b498f371c5d"
_REPLAY = "agentperf_local/data/replays/agentperf-default-v1"


def read_traces(traces: str, progress: Callable[[str], None]) -> list[Recording]:
    """What `--traces` names: `agentperf`, or the path of that wheel. Raises what the two below raise."""
    return read_recordings(take_wheel(progress) if traces == AGENTPERF else Path(traces))


def choose_recordings(recordings: Sequence[Recording], names: Sequence[str]) -> list[Recording]:
    """Those of these names, in the order of the recordings. All without a name. Raises AcmError for an unknown one."""
    known = [recording.name for recording in recordings]
    if unknown := [name for name in names if name not in known]:
        raise AcmError(f"--sessions {', '.join(unknown)}: no conversation has that name; there are {', '.join(known)}")
    return [recording for recording in recordings if not names or recording.name in names]


def take_wheel(progress: Callable[[str], None]) -> Path:
    """The wheel, downloaded where it is not in the cache yet. Raises AcmError where pip cannot, or it is another."""
    wheel = cache_folder() / "traces" / "agentperf_local-0.3.4-py3-none-any.whl"
    if not wheel.exists():
        progress(f"downloading {REQUIREMENT} (3 MB)")
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent) as work:
            _download(Path(work)).rename(wheel)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise AcmError(f"{wheel} has the SHA-256 {found}, expected {SHA256}; remove it")
    return wheel


def _download(folder: Path) -> Path:
    flags = ("--quiet", "--no-deps", "--no-cache-dir", "--ignore-requires-python", "--only-binary", ":all:")
    command = [sys.executable, "-m", "pip", "download", *flags, "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AcmError(
            f"pip could not download {REQUIREMENT}; give the path of its wheel, --traces FILE\n{done.stderr[-2000:]}"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def read_recordings(wheel: Path) -> list[Recording]:
    """All traces of a wheel, in the order of its first manifest. Raises AcmError for a file that has none."""
    if not zipfile.is_zipfile(wheel):
        raise AcmError(f"--traces {wheel}: this is no wheel of agentperf-local")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        manifest = min((name for name in names if name.startswith(f"{_REPLAY}/manifest")), default=None)
        if manifest is None:
            raise AcmError(f"--traces {wheel}: no {_REPLAY}/manifest*.json is in it")
        tasks = json.loads(archive.read(manifest))["tasks"]
        files = {task["task_id"]: f"{_REPLAY}/{task['trace']}" for task in tasks}
        return [read_recording(name, archive.read(file).decode().splitlines()) for name, file in files.items()]


def read_recording(name: str, lines: Sequence[str]) -> Recording:
    """One trace. Raises AcmError for a line that is no turn, or does not go on where the one before ended."""
    rows = [_read_row(name, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise AcmError(f"{name}: the trace is empty")
    steps: list[RecordedStep] = []
    start, pause = 0, 0.0
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        messages = row["messages"]
        end = len(messages) if after is None else _num_shared(messages, after["messages"])
        if end <= start:
            raise AcmError(f"{name}, turn {len(steps) + 1}: it does not go on where the one before ended")
        steps.append(RecordedStep(tuple(messages[start:end]), pause, tuple(messages[end:])))
        start, pause = end, float(row.get("simulated_tool_delay_ms_after") or 0.0) / 1000
    return Recording(name, tuple(rows[0].get("tools") or ()), tuple(steps))


def _read_row(name: str, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if row["messages"] and all(isinstance(message["role"], str) for message in row["messages"]):
            return dict(row)
    except (ValueError, LookupError, TypeError) as error:
        raise AcmError(f"{name}, line {number}: this is no turn of a trace ({error})") from error
    raise AcmError(f"{name}, line {number}: it has no messages, or one without a role")


def _num_shared(messages: Sequence[Message], others: Sequence[Message]) -> int:
    """How many messages two prompts have in common at their beginning."""
    pairs = enumerate(zip(messages, others, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(messages), len(others)))
