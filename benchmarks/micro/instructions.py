"""Instructions that a part of a Python program retires, counted by Valgrind's Callgrind.

    this process    builds the shim, starts `valgrind python -m MODULE ARGUMENTS`, and reads the total
    that process    warms up, calls `counting()` around what is to be counted, and ends

A clock cannot tell 1 % of a scheduler step on a shared machine, and this count can: two runs differ by less than a
thousandth. It knows nothing of caches, of waiting, or of what a model computes.

Decision: the shim is compiled when it is needed. Callgrind is switched on by instructions that Python cannot emit, and
its command line knows only whole functions.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from acmserve.errors import AcmError

_SHIM = "ACMSERVE_CALLGRIND_SHIM"
_SOURCE = """
#include <valgrind/callgrind.h>
extern "C" void begin() { CALLGRIND_START_INSTRUMENTATION; }
extern "C" void end() { CALLGRIND_STOP_INSTRUMENTATION; }
"""
_HEADER = Path("/usr/include/valgrind/callgrind.h")
NOT_FOUND = "instructions are not counted: this needs Valgrind with its header, and g++"


def can_count() -> bool:
    """Whether Valgrind, its header and a compiler are at hand."""
    return _HEADER.is_file() and all(shutil.which(name) for name in ("valgrind", "g++"))


def count_instructions(module: str, arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Instructions of the main thread between the two ends of `counting()` in `python -m module arguments`.

    What the program printed comes with them. Other threads are not counted: what they do hangs on the clock.

    `folder` is for scratch files. Takes one to two minutes where the module imports vLLM, since Valgrind translates
    every instruction in front of the counted ones, too. Raises AcmError with the program's last lines where it fails.
    """
    if not can_count():
        raise AcmError(NOT_FOUND)
    shim = folder / "shim.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-O1", "-x", "c++", "-", "-o", str(shim)], check=True, input=_SOURCE, text=True
    )
    # A process that this one forks would write files, too, so each has its own.
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
    command.append(f"--callgrind-out-file={folder}/callgrind.%p")
    # The same hashes in every run.
    environ = os.environ | {_SHIM: str(shim), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    said, errors = process.communicate()
    if process.returncode:
        last = "\n".join(errors.splitlines()[-5:])
        raise AcmError(f"{module} ended with {process.returncode} under Valgrind:\n{last}")
    return read_total((folder / f"callgrind.{process.pid}-01").read_text(encoding="utf-8")), said


def read_total(text: str) -> int:
    """The sum that a file of Callgrind ends with. Raises AcmError where there is none, or it is 0."""
    found = re.search(r"^totals: (\d+)", text, re.MULTILINE)
    if found is None or not int(found[1]):
        raise AcmError("Callgrind counted nothing: the program never entered `counting()`")
    return int(found[1])


@contextmanager
def counting() -> Iterator[None]:
    """What is counted of a program that `count_instructions` has started. Elsewhere it does nothing."""
    path = os.environ.get(_SHIM)
    if path is None:
        yield
        return
    shim = ctypes.CDLL(path)
    shim.begin()
    try:
        yield
    finally:
        shim.end()
