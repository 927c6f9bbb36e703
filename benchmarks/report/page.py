"""`acmserve bench report`: `docs/benchmarks.md`, one section a benchmark, every number out of its JSON file.

    results/*.json  --SECTIONS-->  question, command, gate, tables, what to know, plot

The page is committed, and a test compares it with what this module makes, so a figure typed by hand fails the build.
What a section shows is a row of data in `sections/`. This module knows no benchmark. The page of compatibility has one
table that is made of results, too (`compatibility.py`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.markdown_text import table
from acmserve.bench.report import compatibility
from acmserve.bench.report.page_section import PageSection, Reports
from acmserve.bench.report.sections.agents import AGENTS
from acmserve.bench.report.sections.answers import ANSWERS
from acmserve.bench.report.sections.edits import EDITS
from acmserve.bench.report.sections.learning import LEARNING
from acmserve.bench.report.sections.micro import MICRO
from acmserve.bench.report.sections.repairs import REPAIRS
from acmserve.bench.report.sections.thoughts import THOUGHTS
from acmserve.errors import AcmError

HEAD = """\
<!-- Made by `acmserve bench report docs/benchmarks.md`: change results or sections, not this page. -->
# Benchmarks

Each section has one question, the command that answers it, the gate, and the numbers.
A gate is a check of correctness that runs before any time is reported.
A red gate reports no time.

The machine has two shared cores of an AMD EPYC and no GPU.
The model is SmolLM2-135M-Instruct where nothing else is said.
Both sides of each comparison run vLLM 0.32 with `--dtype float32`, `--enforce-eager` and `OMP_WAIT_POLICY=passive`.
Float32 and eager mode are not vLLM's own defaults, and they slow vLLM down.
The [log](../benchmarks/LOG.md) tells what was tried, failures included.
"""
RESULTS = Path(__file__).parents[1] / "results"
SECTIONS = (*EDITS, *THOUGHTS, *ANSWERS, *REPAIRS, *AGENTS, *LEARNING, *MICRO)


def page(sections: Iterable[PageSection], folder: Path) -> str:
    """The whole page. Raises AcmError for a file of results that is missing, of a section that is not optional."""
    return "\n".join(
        [HEAD, *(_section(one, folder) for one in sections if not one.is_optional or _is_there(one, folder))]
    )


def _is_there(section: PageSection, folder: Path) -> bool:
    return all((folder / f"{name}.json").is_file() for name in section.files)


def _read(file: Path) -> Report:
    if not file.is_file():
        raise AcmError(f"{file} is missing; the page of benchmarks needs it")
    report: Report = json.loads(file.read_text(encoding="utf-8"))
    if report.get("partial"):
        raise AcmError(f"{file} is a part of a result, of a run that was ended; run the benchmark again")
    return report


def _section(section: PageSection, folder: Path) -> str:
    reports: Reports = {name: _read(folder / f"{name}.json") for name in section.files}
    files = ", ".join(f"[{name}.json](../benchmarks/results/{name}.json)" for name in section.files)
    lines = [f"## {section.title}", "", f"**Question.** {section.question}", ""]
    lines += [f"**Command.** `{section.command}`", "", f"**Gate.** {section.gate}", ""]
    for one in section.tables:
        lines += [f"{one.caption}", ""] if one.caption else []
        lines += [table(one.heads, one.rows(reports)), ""]
    if section.notes:
        lines += [*(f"- {note if isinstance(note, str) else note(reports)}" for note in section.notes), ""]
    if section.plot:
        lines += [f"![{section.title}](../benchmarks/results/{section.plot})", ""]
    return "\n".join([*lines, f"Results: {files}.", ""])


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench report`; 0 when the page is written."""
    parser = argparse.ArgumentParser(
        prog="acmserve bench report",
        description="Writes the page of benchmarks anew, or the table of model families in the page of compatibility, "
        "from the JSON files of results that a checkout holds.",
    )
    parser.add_argument("page", type=Path, metavar="FILE", help="docs/benchmarks.md or docs/compatibility.md")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="default: the results of the checkout"
    )
    options = parser.parse_args(argv)
    if options.page.name == compatibility.NAME:
        compatibility.fill_file(options.page, _read(options.results / f"{compatibility.RESULT}.json"))
    else:
        options.page.write_text(page(SECTIONS, options.results), encoding="utf-8")
    print(f"{options.page}: made of {options.results}")
    return 0


BENCHMARK = Benchmark("report", "the page of benchmarks, from their results", main)
