"""A folder of one task, in which a model's commands are run: set up before, checked afterwards, gone at the end.

    setup --> command, command, ... --> check: does it exit with 0?

Each command is a process of its own, with limits (`sandbox/limits.py`), and ends with all that it has started.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from acmserve.bench.eval.sandbox.limits import RunLimits, start, stop
from acmserve.errors import AcmError

_MAX_BYTES = 2**22
SHELL_LIMITS = RunLimits(seconds=20.0, output_chars=8_000)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left. `code` is None where it was ended."""

    code: int | None
    output: str

    @property
    def told(self) -> str:
        """As a model reads it: an observation, in the form that agents of this kind use."""
        return (
            f"<returncode>{'ended' if self.code is None else self.code}</returncode>\n<output>\n{self.output}</output>"
        )


class Shell:
    """Used as a context manager: its folder is deleted."""

    def __init__(self, limits: RunLimits | None = None) -> None:
        self.limits = limits or SHELL_LIMITS
        self._temporary = tempfile.TemporaryDirectory(prefix="acmserve-shell-")
        self.folder = Path(self._temporary.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._temporary.cleanup()

    def set_up(self, script: str) -> None:
        """Run what makes the task. Raises `AcmError` where that fails, for then nothing was tested."""
        ran = self.run(script)
        if ran.code != 0:
            raise AcmError(f"a task cannot be set up: {ran.output}")

    def passes(self, script: str) -> bool:
        """Whether a check exits with 0."""
        return self.run(script).code == 0

    def run(self, command: str) -> Ran:
        """Run a command of bash in the folder."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = start(["bash", "--noprofile", "--norc", "-c", command], self.folder, self.limits, **streams)
        try:
            output, is_ended = self._read(process)
        finally:
            stop(process)
            if process.stdout is not None:
                process.stdout.close()
        text = self.limits.trim(output.decode(errors="replace"))
        if is_ended:
            return Ran(None, f"{text}\nThe command was ended after {self.limits.seconds:g} seconds.\n")
        return Ran(process.returncode, text)

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
        """What a process says until its end, and whether it has to be ended."""
        assert process.stdout is not None
        pipe, end, output = process.stdout.fileno(), time.monotonic() + self.limits.seconds, b""
        while (left := end - time.monotonic()) > 0:
            if not select.select([pipe], [], [], min(left, 0.05))[0]:
                # A command that leaves something behind does not wait for it.
                if process.poll() is not None:
                    return output, False
                continue
            data = os.read(pipe, 2**16)
            if not data:
                process.wait(max(0.0, end - time.monotonic()))
                return output, False
            output = (output + data)[-_MAX_BYTES:]
        return output, True
