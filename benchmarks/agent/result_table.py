"""A table of one file of results: written once, shown on the terminal behind a run and on the page of benchmarks.

    report --ResultTable.rows--> cells --told_by--> lines on the terminal
                                       --page_section--> docs/benchmarks.md

Cells are Markdown. The terminal drops its backticks. It knows no benchmark.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.agent.text_table import text_table
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import hand_over, kept_file, red_gate
from acmserve.bench.harness.run_log import RUN

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResultTable:
    """`rows` makes the cells out of a report. `caption` stands above, where there are several tables."""

    heads: Sequence[str]
    rows: Callable[[Report], Iterable[Sequence[str]]]
    caption: str = ""


def told_by(*tables: ResultTable) -> Callable[[Report], list[str]]:
    """What people read behind a run: the tables that have rows, or the reasons alone where the gate is red."""

    def lines(report: Report) -> list[str]:
        if red := red_gate(report):
            return red
        found: list[str] = []
        for table in tables:
            rows = [[cell.replace("`", "") for cell in row] for row in table.rows(report)]
            if not rows:
                continue
            heads = [head.replace("`", "") for head in table.heads]
            found += ["", *([table.caption.replace("`", "")] if table.caption else []), *text_table(heads, rows)]
        return [*found, "", "gate green"]

    return lines


def run_benchmark(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    *tables: ResultTable,
) -> int:
    """Parse, measure, print the tables, write the report where it is asked for: 0 when the gate is green, else 1."""
    options = parser.parse_args(argv)
    machine = describe_machine()
    print(one_line(machine), flush=True)
    return hand_over({"machine": machine} | measure(options), told_by(*tables), None, options)


def run_resumable(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    name: str,
    *tables: ResultTable,
) -> int:
    """The same of a benchmark that keeps its parts in `kept_file`. Once it has come to its end the file goes."""
    code = run_benchmark(parser, argv, measure, *tables)
    if not RUN.ended_by:
        kept_file(parser.parse_args(argv), name).unlink(missing_ok=True)
    return code
