"""A Python session that a model writes code for, in a process of its own: `context`, `llm_query`, and what it printed.

    evaluation                          child (child.py, started with limits)
    {"context": ...}           ---->    is ready
    {"code": ...}              ---->    runs it
                               <----    {"query": ["prompt", ...]}      llm_query, llm_query_batched
    {"answers": ["...", ...]}  ---->
                               <----    {"output": "...", "names": [...]}

Lines of JSON go over two pipes of their own, so whatever the code prints is output and nothing else. A session that
overstays its time is ended, with all its variables, and the next code begins a new one. It knows no model.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from acmserve.bench.eval.sandbox.limits import RunLimits, start, stop
from acmserve.errors import AcmError

CHILD = Path(__file__).with_name("child.py")
MAX_LINE_BYTES = 2**25
START_SECONDS = 120.0
_PIPE_BYTES = select.PIPE_BUF
"""What a pipe that can be written to takes without waiting."""
Queries = Callable[[Sequence[str]], list[str]]


class PythonSession:
    """`queries` answers what the code asks a model. Used as a context manager: it ends its process."""

    def __init__(self, context: str, queries: Queries, limits: RunLimits | None = None) -> None:
        self._context, self._queries = context, queries
        self.limits = limits or RunLimits()
        self._folder = tempfile.TemporaryDirectory(prefix="acmserve-repl-")
        self._process: subprocess.Popen[bytes] | None = None
        self._to, self._from = -1, -1
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._folder.cleanup()

    def run(self, code: str) -> str:
        """What the code printed, or why it did not end. The time of queries does not count."""
        try:
            return self.limits.trim(str(self._exchange({"code": code})["output"]))
        except _Gone as gone:
            self.close()
            return f"{gone} All variables but context are lost."

    def value(self, name: str) -> str | None:
        """The text of a variable. None where there is no such variable."""
        try:
            found = self._exchange({"name": name}).get("value")
        except _Gone:
            self.close()
            return None
        return None if found is None else str(found)

    def close(self) -> None:
        """End the process. The next code starts another."""
        if self._process is not None:
            os.close(self._to)
            os.close(self._from)
            stop(self._process)
            self._process = None
            self._read = b""

    def _exchange(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        self._send(wanted)
        left = self.limits.seconds
        while True:
            begun = time.monotonic()
            said = self._receive(left)
            left -= time.monotonic() - begun
            if "query" not in said:
                return said
            self._send({"answers": self._queries([str(prompt) for prompt in said["query"]])})

    def _start(self) -> None:
        child_reads, self._to = os.pipe()
        self._from, child_writes = os.pipe()
        command = [sys.executable, "-I", str(CHILD), str(child_reads), str(child_writes)]
        try:
            self._process = start(
                command,
                Path(self._folder.name),
                self.limits,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(child_reads, child_writes),
            )
        finally:
            os.close(child_reads)
            os.close(child_writes)
        self._send({"context": self._context})
        self._receive(START_SECONDS)

    def _send(self, value: dict[str, Any]) -> None:
        data = memoryview(json.dumps(value).encode() + b"\n")
        try:
            while data:
                if not select.select([], [self._to], [], START_SECONDS)[1]:
                    raise _Gone("The Python session takes no answer.")
                data = data[os.write(self._to, data[:_PIPE_BYTES]) :]
        except BrokenPipeError as error:
            raise _Gone("The Python session has ended.") from error

    def _receive(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise _Gone(f"The code was ended after {self.limits.seconds:g} seconds.")
            data = os.read(self._from, 2**16)
            if not data:
                raise _Gone("The Python session has ended: the code left it, or needed too much.")
            self._read += data
            if len(self._read) > MAX_LINE_BYTES:
                raise _Gone("The code said too much at once.")
        line, _, self._read = self._read.partition(b"\n")
        try:
            said = json.loads(line)
        except ValueError as error:
            raise _Gone("The Python session was damaged by its code.") from error
        if not isinstance(said, dict):
            raise _Gone("The Python session was damaged by its code.")
        return said


class _Gone(AcmError):
    """The process is of no use any more. The text is for the model."""
