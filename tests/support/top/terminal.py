"""`acmserve top` in a terminal of its own: what it draws, and keys for it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SECONDS = 300
"""A failure, not a bound: how long somebody waits for a screen that never comes."""
_PATIENT = f"import sys; from acmserve.cli import main, top; top._SECONDS = {SECONDS}; sys.exit(main())"
"""The command, to which a busy machine is no server that does not answer."""
HOME = "\x1b[H"
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The two ends of a terminal, and the process in it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process, self._master, self._slave = process, master, slave
        self.before = termios.tcgetattr(slave)
        self.written = ""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def settings(self) -> list[Any]:
        """Those of the terminal now."""
        return termios.tcgetattr(self._slave)

    def screen(self) -> str:
        """What was drawn last."""
        return _CODES.sub("", self.written.rpartition(HOME)[2])

    def until(self, is_there: Callable[[str], bool]) -> str:
        """The first screen of which something is true."""
        end = time.monotonic() + SECONDS
        while not is_there(self.screen()):
            assert time.monotonic() < end, f"it never came: {self.screen()!r}"
            assert self.process.poll() is None, self.written[-3000:]
            self._read()
        return self.screen()

    def ended(self) -> int:
        """The exit code."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, "it does not end"
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        while select.select([self._master], [], [], 0.05)[0]:
            self.written += os.read(self._master, 65_536).decode(errors="replace")


@contextmanager
def terminal(*arguments: str, width: int = 150, height: int = 20) -> Iterator[Terminal]:
    """`acmserve top` with these arguments."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        # A shell that runs the suite in the background has switched the signal off, and children inherit that.
        ["env", "--default-signal=INT", sys.executable, "-c", _PATIENT, "top", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environ | {"TERM": "xterm-256color"},
    )
    try:
        yield Terminal(process, master, slave)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(master)
        os.close(slave)
