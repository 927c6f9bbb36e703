"""What the benchmarks end in: where a report goes, how quick to be, and what is handed over.

Tables go to stdout, progress to stderr, so that a table can be kept and progress be seen. The report of a run that was
ended says so and goes to a file of its own, `FILE.partial.json`. It knows no benchmark.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.harness.machine import one_line
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.provenance.kept_file import read_kept, write_whole
from acmserve.bench.provenance.machine_use import busy_line, is_busy
from acmserve.errors import AcmError

_MOST_FAILURES = 20
BEGIN_ANEW = "Begin anew without --resume."
"""What helps where a partial result cannot be gone on with."""


def add_report_options(parser: argparse.ArgumentParser, *, quick: str | None = None, plot: bool = True) -> None:
    """Add `--json`, `--plot` where something can be drawn, and `--quick` where `quick`, its help, is given."""
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write numbers, machine, versions and commit")
    if plot:
        parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw them (needs matplotlib)")


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, for a benchmark of one model that `prepare_model` finds."""
    parser.add_argument(
        "--model",
        default="smollm2",
        metavar="NAME",
        help="smollm2 (default), gemma3, learner (that of `bench learner`), or a Hugging Face folder",
    )


def minutes(text: str) -> float:
    """Argument type: minutes above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return value


def positive(text: str) -> int:
    """Argument type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def as_json(report: dict[str, Any]) -> str:
    """Indented, with each list of numbers on a line of its own."""
    text = json.dumps(report, indent=2)
    return re.sub(r"\[[\s\d.,-]+\]", lambda match: re.sub(r"\s+", "", match[0]).replace(",", ", "), text) + "\n"


def partial_file(file: Path) -> Path:
    """Where a result goes that is not whole: beside that of a whole one."""
    return file.with_suffix(f".partial{file.suffix or '.json'}")


def kept_file(options: argparse.Namespace, name: str) -> Path:
    """Where a run that can go on keeps its parts: beside `--json`, else beside NAME.json here."""
    return partial_file(options.json or Path(f"{name}.json"))


def write_partial(file: Path, name: str, machine: Mapping[str, Any]) -> None:
    """What there is of a benchmark's result that is not whole. Raises AcmError where it cannot be written."""
    write_whole(file, as_json({"benchmark": name, **RUN.as_partial(), "machine": machine}))


def read_partial(file: Path) -> dict[str, Any]:
    """What a run that was ended left, for one that goes on. Raises AcmError where there is nothing, or a part of it."""
    if not file.is_file():
        raise AcmError(f"--resume: there is no {file} to resume. It is what a run with this --json leaves when it ends")
    return read_kept(file, BEGIN_ANEW)


def whole_files(folder: Path) -> list[Path]:
    """The results in a folder, without the parts that ended runs left beside them."""
    return sorted(file for file in folder.glob("*.json") if not file.name.endswith(".partial.json"))


def as_gate(failures: Sequence[str]) -> dict[str, Any]:
    """The entry `gate` of a report: green when nothing failed."""
    return {"green": not failures, "failures": list(failures)}


def red_gate(report: Mapping[str, Any]) -> list[str]:
    """What people read instead of a table: why nothing is reported. Empty when the gate is green."""
    failures = report["gate"]["failures"]
    if not failures:
        return []
    more = [f"  and {len(failures) - _MOST_FAILURES} more"] if len(failures) > _MOST_FAILURES else []
    return ["GATE RED, so nothing is reported:", *(f"  {failure}" for failure in failures[:_MOST_FAILURES]), *more]


def hand_over(
    report: dict[str, Any],
    as_table: Callable[[dict[str, Any]], Sequence[str]],
    draw: Callable[[dict[str, Any], str, Path], str | None] | None,
    options: argparse.Namespace,
) -> int:
    """Print the table, write and draw what `options` ask for. The exit code is 0 when the gate is green, else 1.

    `report` has `machine` and `gate`. Behind a red gate nothing is drawn. `draw` returns why there is no plot, or None.
    Without it `options` ask for none. What the run took of the machine is noted in `use`, unless the report knows more
    than this process does.
    """
    print("\n".join(as_table(report)))
    report["use"] = RUN.use() | report.get("use", {})
    if is_busy(report):
        print(f"BUSY MACHINE, so no time of this is published: {busy_line(report)}")
    if RUN.ended_by:
        report |= {"partial": True, "ended_by": RUN.ended_by}
    if options.json is not None:
        file = partial_file(options.json) if RUN.ended_by else options.json
        write_whole(file, as_json(report))
        RUN.is_reported = bool(RUN.ended_by)
    if draw is not None and options.plot is not None and report["gate"]["green"]:
        said = draw(report, one_line(report["machine"]), options.plot)
        print(said or f"plot: {options.plot}")
    return 0 if report["gate"]["green"] else 1
