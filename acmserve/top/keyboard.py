"""Keys of a terminal, one by one, without waiting for a line. The terminal is as before when it ends.

Where nobody types, because stdin is a file, there are no keys.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import sys
import termios
import time
import tty
from typing import Any, Self

_KEYS = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "4~": "end",
    "5~": "page up",
    "6~": "page down",
}
_PLAIN = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape", "\x04": "q"}
_KEY = re.compile(r"\x1b[\[O]([0-9;]*[A-Za-z~])|.", re.DOTALL)


def keys_of(typed: str) -> list[str]:
    """What was typed as keys: a letter, or the name of a key. Keys that nobody knows are left out."""
    found = []
    for match in _KEY.finditer(typed):
        name = _PLAIN.get(match[0], match[0]) if match[1] is None else _KEYS.get(match[1], "")
        if name:
            found.append(name)
    return found


class Keyboard:
    """Use in a `with`."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if os.isatty(self._descriptor):
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> list[str]:
        """The keys that come within so many seconds. A terminal that is gone says `q`."""
        if self._before is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return []
        try:
            typed = os.read(self._descriptor, 1024)
        except OSError:
            return ["q"]
        return keys_of(self._decoder.decode(typed)) if typed else ["q"]
