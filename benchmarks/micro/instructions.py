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
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from acmserve.errors import AcmError

_SHIM = "ACMSERVE_CALLGRIND_SHIM"
_SOURCE = """
#include <valgrind/callgrind.h>
extern "C" void begin() { CALLGRIND_START_INSTRUMENTATION; }
extern "C" void end() { CALLGRIND_STOP_INSTRUMENTATION; }
extern "C" void end_part(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
_HEADER = Path("/usr/include/valgrind/callgrind.h")
NOT_FOUND = "instructions are not counted: this needs Valgrind with its header, and g++"


def can_count() -> bool:
    """Whether Valgrind, its header and a compiler are at hand."""
    return _HEADER.is_file() and all(shutil.which(name) for name in ("valgrind", "g++"))


def count_instructions(module: str, arguments: Sequence[str], folder: Path, seed: int = 0) -> tuple[int, str]:
    """Instructions of the main thread between the two ends of `counting()` in `python -m module arguments`.

    What the program printed comes with them. Another `seed` gives strings other hashes, and so memory another layout.
    Other threads are not counted: what they do hangs on the clock.

    `folder` is for scratch files. Takes one to two minutes where the module imports vLLM, since Valgrind translates
    every instruction in front of the counted ones, too. Raises AcmError with the program's last lines where it fails.
    """
    process_id, said = run_counted(module, arguments, folder, seed=seed)
    return read_total((folder / f"callgrind.{process_id}-01").read_text(encoding="utf-8")), said


def run_counted(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    told: Callable[[str], None] = lambda line: None,
    seed: int = 0,
) -> tuple[int, str]:
    """Run `python -m module arguments` under Valgrind: its process, and what it printed. The counts are in `folder`.

    `told` gets each line when it is printed.
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
    # The same hashes in every run of a seed.
    environ = os.environ | {_SHIM: str(shim), "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"}
    errors = folder / "errors.txt"
    said = []
    with (
        errors.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            [*command, sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environ,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                told(line)
        except BaseException:
            # A signal or a time limit ends this process alone. That one may have forks.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        last = "\n".join(errors.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
        raise AcmError(f"{module} ended with {process.returncode} under Valgrind:\n{last}")
    return process.pid, "".join(said)


def read_parts(folder: Path, process_id: int) -> dict[str, list[int]]:
    """The counts of each part that this process, or a fork of it, has named. In their order."""
    counts: dict[str, list[int]] = {}
    for file in sorted(folder.glob(f"callgrind.{process_id}.*-01"), key=_part_number):
        text = file.read_text(encoding="utf-8")
        found = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
        if found is not None:
            counts.setdefault(found[1], []).append(read_total(text))
    return counts


def _part_number(file: Path) -> int:
    """callgrind.PROCESS.PART-THREAD"""
    return int(file.name.rpartition("-")[0].rpartition(".")[2])


def read_total(text: str) -> int:
    """The sum that a file of Callgrind ends with. Raises AcmError where there is none, or it is 0."""
    found = re.search(r"^totals: (\d+)", text, re.MULTILINE)
    if found is None or not int(found[1]):
        raise AcmError("Callgrind counted nothing: the program never entered `counting()`")
    return int(found[1])


@contextmanager
def counting() -> Iterator[Callable[[str], None]]:
    """What is counted of a program that `count_instructions` has started. Elsewhere it does nothing.

    Yields what ends a part of the count and names it, for `read_parts`.
    """
    path = os.environ.get(_SHIM)
    if path is None:
        yield lambda name: None
        return
    shim = ctypes.CDLL(path)
    shim.begin()
    try:
        yield lambda name: shim.end_part(name.encode())
    finally:
        shim.end()
