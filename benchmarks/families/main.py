"""`acmserve bench families`: which model families move their KV, with the settings of their recipes.

Each family is started by the real engine, as a small random model of vLLM's class, and a piece of its context is
folded. The table tells what was moved, and every refusal's reason. Where the CPU build of vLLM cannot start a class,
the row says so. Nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.text_table import text_table
from acmserve.bench.families.registry import FAMILIES
from acmserve.bench.families.runs import KINDS, faults, in_words, moves, run_all
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, as_gate, as_json, hand_over, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.provenance.kept_file import kept_entries, read_kept, write_whole
from acmserve.bench.provenance.measured import ENGINE

_REMEDY = "Begin anew without --resume and --only, or name another --json."


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench families`. 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    machine = describe_machine()
    print(f"{len(FAMILIES)} families of models.\n{one_line(machine)}", flush=True)
    families = [family for family in FAMILIES if not options.only or family.number in options.only]
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    rows = _rows(options.json) if options.resume or options.only else {}
    again = {(number, kind) for number in options.only for kind in options.settings}
    rows = {key: row for key, row in rows.items() if key not in again}

    def keep(found: list[dict[str, Any]]) -> None:
        if options.json is not None:
            report = as_report(found) | {"partial": True, "machine": machine}
            write_whole(options.json, as_json(report))

    found = run_all(families, rows, options.seconds, keep, progress, options.logs, options.settings)
    return hand_over(as_report(found) | {"machine": machine}, as_table, None, options)


def _rows(file: Path | None) -> dict[tuple[int, str], dict[str, Any]]:
    """The rows of a report that is there. Raises AcmError where it cannot be read."""
    if file is None or not file.is_file():
        return {}
    report = read_kept(file, _REMEDY)
    with kept_entries(file, _REMEDY):
        return {(row["number"], row["kind"]): row for row in report["rows"]}


def as_report(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON-ready. The gate is about wrong answers, and a refusal is none."""
    counts = {kind: sum(moves(row) for row in rows if row["kind"] == kind) for kind in KINDS}
    return {
        "gate": as_gate([fault for row in rows for fault in faults(row)]),
        "families": len({row["number"] for row in rows}),
        "moved": counts,
        "rows": list(rows),
    }


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read."""
    heads = ("", "family", "settings", "found")
    rows = [[str(row["number"]), row["name"], row["kind"], in_words(row)[:120]] for row in report["rows"]]
    counts = ", ".join(f"{number} with {kind} settings" for kind, number in report["moved"].items())
    return [
        *text_table(heads, rows),
        "",
        f"of {report['families']} families move: {counts}",
        *report["gate"]["failures"],
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench families", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--only", nargs="+", type=positive, default=(), metavar="NUMBER", help="run these again, by their numbers"
    )
    parser.add_argument(
        "--settings", nargs="+", choices=KINDS, default=KINDS, help="with these settings alone (default: both)"
    )
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file of --json has")
    parser.add_argument(
        "--seconds", type=positive, default=400, metavar="N", help="time limit of each family (default: 400)"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what vLLM prints, a file for each family")
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark(
    "families",
    "which model families move their KV, each started as a small random model",
    main,
    (BenchmarkRun("families", ("families",), can_plot=False, measures=ENGINE, is_timed=False),),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
