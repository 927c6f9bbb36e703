"""What the suite runs on: a CUDA card with its free memory, or this CPU.

A card is asked in a process of its own. One that has looked at a card holds half a gigabyte of it until it ends. Knows
no engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.errors import AcmError

CUDA, CPU = "cuda", "cpu"
KINDS = (CUDA, CPU)
_ASK = """
import json, torch
free, total = torch.cuda.mem_get_info()
found = {"name": torch.cuda.get_device_name(), "free_bytes": free, "total_bytes": total, "cuda": torch.version.cuda}
print(json.dumps(found | {"capability": torch.cuda.get_device_capability(), "num_devices": torch.cuda.device_count()}))
"""
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Device:
    """`kind` is `CUDA` or `CPU`. `free_bytes` is None where no card's memory bounds anything.

    `cuda` is the version that torch was built with, `num_devices` how many cards it sees. The suite uses the first one.
    """

    kind: str
    name: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    cuda: str | None = None
    capability: tuple[int, ...] = ()
    num_devices: int = 0


def read_device(kind: str) -> tuple[Device | None, str]:
    """The device, or None and why there is none. `kind` CPU is always there."""
    if kind == CPU:
        return Device(CPU, "none: this CPU, and Triton's interpreter"), ""
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env=child_environ(),
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        return None, said[-1] if said else "torch told nothing of a CUDA device"
    found = json.loads(lines[-1])
    return Device(CUDA, **(found | {"capability": tuple(found["capability"])})), ""


def child_environ() -> dict[str, str]:
    """The environment of a process that finds the packages of this one, however it found them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def told_by_program(module: str, *options: str, seconds: float | None = None) -> dict[str, Any]:
    """What a program writes to its `--json`, from a process of its own, which gives its memory back.

    Raises AcmError where it writes nothing, or takes longer than `seconds`.
    """
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        file = Path(folder) / "told.json"
        command = [sys.executable, "-m", module, "--json", str(file), *options]
        try:
            done = subprocess.run(command, check=False, env=child_environ(), timeout=seconds)
        except subprocess.TimeoutExpired as late:
            raise AcmError(f"{module} was ended after {seconds:.0f} s") from late
        if not file.is_file():
            raise AcmError(f"{module} ended with {done.returncode}, and told nothing")
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return told
