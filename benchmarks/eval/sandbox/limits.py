"""How a process that runs a model's code is started: offline, with an empty environment, and with limits.

    command --> [unshare --net --pid] bash -c 'ulimit ...; "$@"' --> its own process group, its own folder as home

Decision: this is a fence, and no jail. It keeps runaway code from the machine: time, memory and sizes of files have
limits. The network is kept from the code, too, where the kernel lets a user make a network of his own. There, what the
code leaves behind ends with it, too. Files of the machine can still be read. So what runs code has to be named in a
command, and is never part of a default.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

_OFFLINE = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
_WRAPPED = 'ulimit -t "$1" -v "$2" -f "$3" -c 0 || exit 125; shift 3; "$@"; exit $?'


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`seconds` of waiting for one command, `cpu_seconds` of its work, and sizes in bytes.

    `output_chars` are what is kept of its output: the beginning and the end.
    """

    seconds: float = 30.0
    cpu_seconds: int = 60
    memory_bytes: int = 2**31
    file_bytes: int = 2**26
    output_chars: int = 20_000

    def showing(self, num_chars: int | None) -> Self:
        """These limits with so much of the output, where a number is given."""
        return self if num_chars is None else replace(self, output_chars=num_chars)

    def trim(self, output: str) -> str:
        """The output, without its middle where it is longer."""
        gone = len(output) - self.output_chars
        if gone <= 0:
            return output
        half = self.output_chars // 2
        return f"{output[:half]}\n... {gone:,} characters left out ...\n{output[len(output) - half :]}"

    def joined(self, outputs: Sequence[str]) -> str:
        """Several outputs, of which each was trimmed: together they are no longer than one."""
        return outputs[0] if len(outputs) == 1 else self.trim("\n".join(outputs))


@functools.cache
def can_be_offline() -> bool:
    """Whether a process can be started without a network here."""
    if shutil.which(_OFFLINE[0]) is None:
        return False
    return subprocess.run([*_OFFLINE, "true"], capture_output=True, check=False).returncode == 0


def start(command: Sequence[str], folder: Path, limits: RunLimits, **streams: Any) -> subprocess.Popen[bytes]:
    """Start a command in a folder. `streams` are those of `Popen`."""
    sizes = (limits.cpu_seconds, limits.memory_bytes // 1024, limits.file_bytes // 1024)
    wrapped = ["bash", "--noprofile", "--norc", "-c", _WRAPPED, "bash", *map(str, sizes), *command]
    python = str(Path(sys.executable).parent)
    return subprocess.Popen(
        [*(_OFFLINE if can_be_offline() else ()), *wrapped],
        cwd=folder,
        env={
            "PATH": os.pathsep.join((python, os.defpath)),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "TMPDIR": str(folder),
        },
        start_new_session=True,
        **streams,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
