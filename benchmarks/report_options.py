"""What the benchmarks end in: where a report goes, how quick to be, what is said meanwhile, and what is handed over.

Tables go to stdout, progress to stderr, so that a table can be kept and progress be seen. It knows no benchmark.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.machine import one_line


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


def hand_over(
    report: dict[str, Any],
    as_table: Callable[[dict[str, Any]], Sequence[str]],
    draw: Callable[[dict[str, Any], str, Path], str | None],
    options: argparse.Namespace,
) -> int:
    """Print the table, write and draw what `options` ask for; the exit code: 0 when the gate is green, else 1.

    `report` has `machine` and `gate`; behind a red gate nothing is drawn. `draw` returns why there is no plot, or None.
    """
    print("\n".join(as_table(report)))
    if options.json is not None:
        options.json.write_text(as_json(report), encoding="utf-8")
    if options.plot is not None and report["gate"]["green"]:
        said = draw(report, one_line(report["machine"]), options.plot)
        print(said or f"plot: {options.plot}")
    return 0 if report["gate"]["green"] else 1
