"""`acmserve bench report`: `docs/benchmarks.md`, a page to decide by, every number out of its JSON file.

    results/*.json  --NUMBERS-->   five numbers with their bars, and the picture
                    --SECTIONS-->  question, answer, and folded below it: command, gate, tables, what to know, plot
                    --ledger-->    a mark beside what is older than the code

The page is committed, and a test compares it with what this module makes, so a figure typed by hand fails the build.
What a section shows is a row of data in `sections/`. This module knows no benchmark. The page of compatibility has one
table that is made of results, too (`compatibility.py`), and the ledger is a page of its own (`ledger.py`). What peers
say of themselves is no result, and stands last (`peer_claims.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.markdown_text import strong, table
from acmserve.bench.harness.options import whole_files
from acmserve.bench.provenance.machine_use import busy_line, is_busy
from acmserve.bench.provenance.made_by import made_by
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.provenance.repetitions import OLDER_WITH_FEWER, shortfall_line, too_few_line
from acmserve.bench.report import compatibility, ledger
from acmserve.bench.report.all import RESULTS
from acmserve.bench.report.decision import NUMBERS, first_screen
from acmserve.bench.report.ledger import LedgerRow, ledger_page, mark_of, read_ledger, repeats_of
from acmserve.bench.report.page_height import check_page
from acmserve.bench.report.page_section import PageSection, Reports
from acmserve.bench.report.peer_claims import claims_section
from acmserve.bench.report.sections.agents import AGENTS
from acmserve.bench.report.sections.answers import ANSWERS
from acmserve.bench.report.sections.edits import EDITS, FOREGROUND
from acmserve.bench.report.sections.evaluations.evaluation import EVALUATION
from acmserve.bench.report.sections.gpu import GPU
from acmserve.bench.report.sections.learning import LEARNING
from acmserve.bench.report.sections.loads import LOADS
from acmserve.bench.report.sections.micro import MICRO
from acmserve.bench.report.sections.missed import BESIDE
from acmserve.bench.report.sections.paired import PAIRED
from acmserve.bench.report.sections.renewed import renewed
from acmserve.bench.report.sections.repairs import REPAIRS
from acmserve.bench.report.sections.scale import SCALE
from acmserve.bench.report.sections.sweep import SWEEPS
from acmserve.bench.report.sections.thoughts import SPECULATION, THOUGHTS
from acmserve.bench.report.sources import find_sources
from acmserve.errors import AcmError

HEAD = """\
<!-- Made by `acmserve bench report docs/benchmarks.md`: change results or sections, not this page. -->
# Benchmarks

What an edited context costs on vLLM with acmserve, in five numbers.

![A fold: what is kept, moved and computed, and the time to the first token](edit.svg)
"""
HOW = """\
<details markdown="1">
<summary>How it was measured</summary>

A gate is a check of correctness that runs before any time is reported. A red gate reports no time.
Most results are from two shared cores of an AMD EPYC. Those of an 8B model are from a GPU.
The model is SmolLM2-135M-Instruct where nothing else is said.
"At vLLM's own defaults" both sides run vLLM 0.32 in the model's own precision, bfloat16, and compiled.
Elsewhere both run with `--dtype float32` and `--enforce-eager`, which slow vLLM down.
All engines have `OMP_WAIT_POLICY=passive`: a thread that waits leaves its core to others.
The [ledger](ledger.md) has date, commit, machine and age of each file.
The [log](../benchmarks/LOG.md) tells what was tried, failures included.

</details>

## Questions
"""
SECTIONS = (
    *(*EDITS, *SCALE, *GPU, *PAIRED, *FOREGROUND, *THOUGHTS, *SPECULATION),
    *(*EVALUATION, *ANSWERS, *REPAIRS, *AGENTS, *SWEEPS, *LOADS, *LEARNING, *MICRO),
)
_DETAILS = '<details markdown="1">'
_FOLDED = (_DETAILS, "<summary>Numbers, gate and command</summary>", "")


def page(sections: Iterable[PageSection], folder: Path) -> str:
    """The whole page. Raises AcmError for a file of results that is missing, of a section that is not optional.

    It raises AcmError, too, where the page is too high, or shows names of fields.
    """
    rows = read_ledger(folder)
    needed = {name for number in NUMBERS for name in number.files}
    optional = {name for one in BESIDE for name in one.files} | {name for one in NUMBERS for name in one.optional}
    there = {name for name in optional if (folder / f"{name}.json").is_file()}
    reports = {name: _read(folder / f"{name}.json") for name in sorted(needed | there)}
    told = sections_of(sections, folder, rows)
    made = "\n".join([HEAD, *first_screen(reports, rows), HOW, *told, *claims_section()])
    check_page(made, [json.loads(file.read_text(encoding="utf-8")) for file in whole_files(folder)])
    return made


def sections_of(sections: Iterable[PageSection], folder: Path, rows: Mapping[str, LedgerRow]) -> list[str]:
    """Every section that has its results. Raises AcmError as above."""
    there = [one for one in sections if not one.is_optional or _is_there(one, folder)]
    lines = []
    for group, some in itertools.groupby(there, key=lambda one: one.group):
        told = [_section(one, folder, rows) for one in some]
        lines += [_DETAILS, f"<summary>{group}</summary>\n", *told, "</details>\n"] if group else told
    return lines


def _is_there(section: PageSection, folder: Path) -> bool:
    return all((folder / f"{name}.json").is_file() for name in section.files)


def _read(file: Path) -> Report:
    if not file.is_file():
        raise AcmError(f"{file} is missing; the page of benchmarks needs it")
    report = renewed(file.stem, json.loads(file.read_text(encoding="utf-8")))
    if report.get("partial"):
        raise AcmError(f"{file} is a part of a result, of a run that was ended; run the benchmark again")
    if not report.get("gate", {}).get("green", True):
        raise AcmError(f"{file} has a red gate, so nothing of it is reported: {report['gate']['failures'][0]}")
    source = find_sources().get(file.stem)
    is_timed = source is None or source.is_timed
    if is_timed and is_busy(report):
        raise AcmError(f"{file} was measured on a busy machine: {busy_line(report)}; run it again on a quiet one")
    if is_timed and (few := too_few_line(report, OLDER_WITH_FEWER.get(file.stem, LEAST_REPETITIONS))):
        raise AcmError(f"{file}: {few}")
    return report


def _section(section: PageSection, folder: Path, rows: Mapping[str, LedgerRow]) -> str:
    reports: Reports = {name: _read(folder / f"{name}.json") for name in section.files}
    files = ", ".join(f"[{name}.json](../benchmarks/results/{name}.json)" for name in section.files)
    said = [section.answer if isinstance(section.answer, str) else section.answer(reports)]
    found = [rows[name] for name in section.files]
    said += [mark_of(found), repeats_of(found)]
    lines = [f"### {section.title}", "", strong(section.question), " ".join(filter(None, said)), "", *_FOLDED]
    lines += [f"**Command**: `{section.command}`{_made_by(section, reports)}", "", f"**Gate**: {section.gate}", ""]
    lines += [line for told in _shortfalls(reports) for line in (told, "")]
    for one in section.tables:
        if rows_of := list(one.rows(reports)):
            lines += [f"{one.caption}", ""] if one.caption else []
            lines += [table(one.heads, rows_of), ""]
    if section.notes:
        notes = [note if isinstance(note, str) else note(reports) for note in section.notes]
        lines += [*(f"- {note}" for note in notes if note), ""]
    if section.plot:
        lines += [f"![{section.title}](../benchmarks/results/{section.plot})", ""]
    return "\n".join([*lines, f"Results: {files}.", "", "</details>", ""])


def _made_by(section: PageSection, reports: Reports) -> str:
    """The commands that were recorded, where neither the section nor the ledger names them. "" where both do."""
    told = []
    for name, report in reports.items():
        source = find_sources().get(name)
        if made := made_by([section.command, *([source.command] if source else [])], report):
            told.append(made if len(reports) == 1 else f"{made} ({name}.json)")
    return f". Made by {' and '.join(told)}." if told else ""


def _shortfalls(reports: Reports) -> list[str]:
    """What timed files of a section lack, with their names where another one of it does not lack the same."""
    lacking: dict[str, list[str]] = {}
    for name, report in reports.items():
        source = find_sources().get(name)
        if (source is None or source.is_timed) and (line := shortfall_line(report)):
            lacking.setdefault(line, []).append(name)
    return [
        line if len(names) == len(reports) else f"In {' and '.join(f'{name}.json' for name in names)}: {line}"
        for line, names in lacking.items()
    ]


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench report`. Returns 0 when the page is written."""
    parser = argparse.ArgumentParser(
        prog="acmserve bench report",
        description="Writes the page of benchmarks anew, the ledger of results, or the table of model families in the "
        "page of compatibility, from the JSON files of results that a checkout holds.",
    )
    parser.add_argument(
        "page", type=Path, metavar="FILE", help="docs/benchmarks.md, docs/ledger.md or docs/compatibility.md"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="default: the results of the checkout"
    )
    options = parser.parse_args(argv)
    if options.page.name == compatibility.NAME:
        compatibility.fill_file(options.page, _read(options.results / f"{compatibility.RESULT}.json"))
    elif options.page.name == ledger.PAGE:
        options.page.write_text(ledger_page(read_ledger(options.results)), encoding="utf-8")
    else:
        options.page.write_text(page(SECTIONS, options.results), encoding="utf-8")
    print(f"{options.page}: made of {options.results}")
    return 0


BENCHMARK = Benchmark("report", "the page of benchmarks, from their results", main)
