"""`acmserve bench ledger`: of every file of results its date, commit, machine and size, and whether it is stale.

    results/*.json + git  -->  one row a file  -->  the terminal, docs/ledger.md, the marks on the other pages

A result is stale where a path that it measures differs from the commit that it was measured on. It is stale as well
where nobody can tell. Such a result names no commit, one that this history lacks, or a tree in which a measured path
was changed. What a file does not say is told as not recorded.

Decision: contents are compared, not dates. So a merge, or a change that was taken back, makes nothing stale, and a
change that is not committed yet does. A result of counts alone is not stale while a test of the suite asks for all of
them again. Where that test is green, the counts are those of today's code. Times have no such remedy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.agent.text_table import text_table
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import cpu_of
from acmserve.bench.harness.markdown_text import table
from acmserve.bench.harness.options import whole_files
from acmserve.bench.harness.run_log import duration
from acmserve.bench.provenance.code_state import CURRENT, OLDER, ROOT, UNKNOWN, find_state
from acmserve.bench.provenance.machine_use import is_busy
from acmserve.bench.provenance.measured import REPEATED_BY
from acmserve.bench.report.all import RESULTS
from acmserve.bench.report.beside import beside_lines
from acmserve.bench.report.sources import ResultSource, find_sources
from acmserve.errors import AcmError

PAGE = "ledger.md"
REPEATED = "repeated by the suite"
MARKS = (OLDER, "of a commit that is not known")
"""What a page says beside a stale figure: one of these."""
_HEAD = """\
<!-- Made by `acmserve bench report docs/ledger.md`: change results or sources, not this page. -->
# Ledger

Every file of results, what it was measured on, and whether the code has changed since.
`acmserve bench ledger` prints it. `make evidence-check` fails while one is stale.
`acmserve bench ledger --one-commit` fails while not all results are of one clean commit.
`make evidence` measures everything again, and goes on where it was ended. `make evidence-quick` has the README's times.
On a kind of processor of which no run is committed it compares nothing, and nothing fails.
`acmserve bench reruns` lists what to measure again, why, how long it took, and whether a quiet machine is needed.
With `--run` it measures that, and `--max-minutes` ends a sitting.

A result is stale where a path that it measures is no longer that of its commit.
Docstrings and comments of Python do not count.
A result is stale, too, where its commit is not recorded, or not in this history, or was modified.
A page that shows a stale figure says so beside it, and a test fails without these words.
A result of counts alone is not stale while a test of the suite asks for all of them again.
"""
_HEADS = ("results", "date", "commit", "machine", "load", "n", "took", "state")
_SIZES = ("num_cases", "repetitions", "rounds", "num_rounds", "num_attacks", "classes", "families")
_NO_PROGRAM = ("benchmarks/results", "benchmarks/LOG.md", "docs", "README.md", "CHANGELOG.md", "tests")
_INNER = (("cells", "num_repetitions"), ("models", "num_cases"))


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What a file says of itself. `state` is `current`, or why it is stale. `revision` is the whole commit, or ""."""

    source: ResultSource
    date: str
    commit: str
    machine: str
    load: str
    size: str
    seconds: float | None
    state: str
    revision: str = ""

    @property
    def is_stale(self) -> bool:
        """Whether its figures may be those of other code."""
        return self.state not in (CURRENT, REPEATED)

    def cells(self) -> list[str]:
        """As a row of the table."""
        file = f"{self.source.name}.json"
        took = UNKNOWN if self.seconds is None else duration(self.seconds)
        return [file, self.date, self.commit, self.machine, self.load, self.size, took, self.state]


def mark_of(rows: Iterable[LedgerRow], ledger: str = PAGE) -> str:
    """What stands beside the figures of some files, with a link to the ledger. "" where all are current."""
    states = {row.state for row in rows if row.is_stale}
    if not states:
        return ""
    what = MARKS[0] if OLDER in states else MARKS[1]
    return f"*Figures [{what}]({ledger})*."


def repeats_of(rows: Iterable[LedgerRow]) -> str:
    """Beside that mark: which counts the suite says to be those of today's code. "" where it has to say of none."""
    told = [row.source.repeats for row in rows if row.source.repeats and row.state != CURRENT]
    return " ".join(f"The suite repeats {counts}, in `{REPEATED_BY}`." for counts in told)


def make_row(source: ResultSource, report: Mapping[str, Any], root: Path = ROOT) -> LedgerRow:
    """The row of one file."""
    machine = report.get("machine") or {}
    use = report.get("use") or {}
    commit = machine.get("commit")
    cores = f"{machine.get('cores')} core{'s' * (machine.get('cores') != 1)}"
    parts = [machine.get("gpu") or cpu_of(machine), cores] if machine else [UNKNOWN]
    seconds = use.get("seconds", 60 * report["minutes"] if "minutes" in report else None)
    load = f"{machine['load']:g}" if "load" in machine else UNKNOWN
    state = find_state(commit, machine.get("changed"), source.measures, root)
    return LedgerRow(
        source=source,
        date=str(machine.get("date") or UNKNOWN)[:12].partition("T")[0],
        commit=commit[:8] + ("+" if commit.endswith("+") else "") if commit else UNKNOWN,
        machine=", ".join(map(str, parts)),
        load=f"{load}, busy" if is_busy(report) else load,
        size=find_size(report),
        seconds=seconds,
        state=REPEATED if state == OLDER and source.repeats and not source.is_timed else state,
        revision=(commit or "").removesuffix("+"),
    )


def find_size(report: Mapping[str, Any]) -> str:
    """How many cases, repetitions or answers a result is about, with the word for it."""
    if answers := (report.get("use") or {}).get("answers"):
        return f"{answers:,} answers"
    for name in _SIZES:
        if isinstance(report.get(name), int):
            return f"{report[name]:,} {name.removeprefix('num_')}"
    for part, name in _INNER:
        if report.get(part):
            return f"{report[part][0].get(name, 0):,} {name.removeprefix('num_')}"
    return UNKNOWN


def read_ledger(folder: Path = RESULTS, root: Path = ROOT) -> dict[str, LedgerRow]:
    """A row for every whole result in the folder. Raises AcmError for one that no source has."""
    sources, rows = find_sources(), {}
    for file in whole_files(folder):
        if file.stem not in sources:
            raise AcmError(f"{file} is made by nothing that is known; add a run, or a row to ELSEWHERE in sources.py")
        report = json.loads(file.read_text(encoding="utf-8"))
        rows[file.stem] = make_row(sources[file.stem], report, root)
    return rows


def ledger_page(rows: Mapping[str, LedgerRow]) -> str:
    """`docs/ledger.md`."""
    cells = [[f"[{row.cells()[0]}](../benchmarks/results/{row.cells()[0]})", *row.cells()[1:]] for row in rows.values()]
    again = [[row.source.name, f"`{row.source.command}`", _paths(row.source)] for row in rows.values()]
    made = table(("results", "command that measures it again", "what it measures"), again)
    return "\n".join([_HEAD, _told(rows.values()), "", table(_HEADS, cells), "", made, ""])


def _paths(source: ResultSource) -> str:
    return ", ".join(f"`{path}`" for path in source.measures)


def one_commit(rows: Iterable[LedgerRow], root: Path = ROOT) -> tuple[bool, str]:
    """Whether all results are of one commit of a clean tree, and of how many commits they are, for people.

    Commits of the checkout `root` that differ in results, pages or tests alone count as one: they are one program.
    """
    known = list(rows)
    commits: list[str] = []
    for revision in dict.fromkeys(row.revision for row in known if row.revision):
        if not any(_is_same_program(revision, one, root) for one in commits):
            commits.append(revision)
    unclean = sum(not row.revision or row.commit.endswith("+") for row in known)
    told = f"{len(commits)} commit{'s' * (len(commits) != 1)}"
    if unclean:
        told += f", {unclean} result{'s' * (unclean != 1)} of a modified tree or of an unknown commit"
    return len(commits) == 1 and not unclean, told


def _is_same_program(one: str, other: str, root: Path) -> bool:
    """False, too, where the history lacks one of them."""
    rest = [":/", *(f":(top,exclude){path}" for path in _NO_PROGRAM)]
    git = ["git", "-C", str(root), "diff", "--quiet", one, other, "--", *rest]
    same = subprocess.run(git, check=False, capture_output=True)
    return same.returncode == 0


def _told(rows: Iterable[LedgerRow]) -> str:
    known = list(rows)
    is_one, commits = one_commit(known)
    stale, timed = sum(row.is_stale for row in known), sum(row.seconds is not None for row in known)
    repeated = ", ".join(row.source.name for row in known if row.source.repeats) or "none"
    return (
        f"Of {len(known)} files {stale} are stale today. How long it took is recorded in {timed}.\n"
        f"The suite repeats counts of {repeated}, in `{REPEATED_BY}`.\n"
        f"All results of one clean commit: {'yes' if is_one else 'no'} ({commits})."
    )


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench ledger`. 1 while what `--check` or `--one-commit` asks for is not so.

    1 as well where ratios differ that `--beside` compares.
    """
    parser = argparse.ArgumentParser(
        prog="acmserve bench ledger",
        description="Prints of every file of results its date, commit, machine, size, and whether it is older than the "
        "code that it measures.",
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 while a result is stale")
    parser.add_argument(
        "--one-commit",
        action="store_true",
        help="exit code 1 while not all results are of one clean commit, "
        "or of such as differ in results, pages or tests alone",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: those of the checkout")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="DIR",
        help="instead: the README's times of this folder beside those committed; exit code 1 where they disagree",
    )
    options = parser.parse_args(argv)
    rows = read_ledger(options.results)
    if options.beside is not None:
        lines, agrees = beside_lines(options.results, options.beside, _took(rows))
        print("\n".join(lines))
        return 0 if agrees else 1
    print("\n".join(text_table(_HEADS, [row.cells() for row in rows.values()])))
    print(_told(rows.values()))
    is_stale = options.check and any(row.is_stale for row in rows.values())
    return 1 if is_stale or (options.one_commit and not one_commit(rows.values())[0]) else 0


def _took(rows: Mapping[str, LedgerRow]) -> dict[str, str]:
    """Of each result the command, and how long it took."""
    seconds = {name: rows[name].seconds if name in rows else None for name in find_sources()}
    told = {name: f"took {duration(one)}" if one is not None else f"time {UNKNOWN}" for name, one in seconds.items()}
    return {name: f"`{source.command}`, {told[name]}" for name, source in find_sources().items()}


BENCHMARK = Benchmark("ledger", "every file of results: date, commit, machine, and whether it is stale", main)
