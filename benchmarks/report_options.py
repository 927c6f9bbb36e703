"""What the command lines of the benchmarks end in: where a report goes, how quick to be, and what is said meanwhile.

Tables go to stdout, progress to stderr, so that a table can be kept and progress be seen. It knows no benchmark.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any


def add_report_options(parser: argparse.ArgumentParser, *, quick: str | None = None, plot: bool = True) -> None:
    """Add `--json`; `--plot` where something can be drawn; `--quick`, with `quick` as its help, where there is one."""
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write numbers, machine, versions and commit")
    if plot:
        parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw them (needs matplotlib)")


def positive(text: str) -> int:
    """Argument type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def progress(line: str) -> None:
    """One line on stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def as_json(report: dict[str, Any]) -> str:
    """Indented, with each list of numbers on a line of its own."""
    text = json.dumps(report, indent=2)
    return re.sub(r"\[[\s\d.,-]+\]", lambda match: re.sub(r"\s+", "", match[0]).replace(",", ", "), text) + "\n"
