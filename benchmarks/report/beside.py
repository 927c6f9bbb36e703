"""The README's times as a reader measured them, beside those that are committed: how many times longer stock takes.

    bench-results/edit-cpu.json   one run of `acmserve bench edit` on the reader's machine
    benchmarks/results            the committed ones, one for each kind of processor that was tried

Another machine has other seconds, so each series is held against the stock engine of its own run, settings and
repetition. Both ratios have a 95 % interval over their repetitions. They agree where the intervals meet.

Decision: a run is held against the committed one of a processor with the same widest instructions. With others stock
prefills faster or slower, and moved KV does not, so the ratio is another one there. Where no such run is committed,
nothing is judged and nothing fails. It says what was committed instead.

Decision: an interval is Student's, of logarithms. A bootstrap of three repetitions is far too narrow, and would call
what agrees another result. Of fewer than three no interval says anything, and nothing is judged.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acmserve.bench.agent.estimates import repeated_ratio_interval
from acmserve.bench.agent.text_table import text_table
from acmserve.bench.edit.run import REPAIR
from acmserve.bench.edit.table import at_defaults, cell_of
from acmserve.bench.edit.times import AT_DEFAULTS, AUTO, DEFAULTS, EXACT, REUSE, STOCK, by_repetition
from acmserve.bench.harness.machine import AMX, cpu_of
from acmserve.bench.harness.markdown_text import interval, ratio, seconds
from acmserve.bench.provenance.machine_use import busy_line, is_busy
from acmserve.bench.report.sections.edits import KINDS_OF_PROCESSORS, RESULT, WITH_AMX
from acmserve.errors import AcmError

MADE_BY = RESULT
_TOLD = (EXACT, AUTO, REPAIR, REUSE)
TIMES = (*map(at_defaults, _TOLD), *_TOLD)
"""The series of a fold that the README tells. Each stands beside the stock engine of its own settings."""
LEAST_REPETITIONS = 3
NOT_REPEATED = {"answers lost or won beside `exact`": "tasks", "`exact`, with less in it": "eval"}
"""What else the README's table has: a column and a row, and whose results they are."""
WITHIN, ABOVE, BELOW, TOO_FEW = "within it", "above it", "below it", "not judged"
ELSEWHERE = "of another kind of processor"
_HEADS = ("fold", "committed", "stock takes, times", "here", "stock takes, times", "here is")


@dataclass(frozen=True, slots=True)
class MeasuredFold:
    """The times of a fold in one file, and what they were measured on."""

    times: dict[str, list[float]]
    machine: dict[str, Any]
    busy: str

    @property
    def vectors(self) -> str | None:
        """The widest instructions of its processor. None where that is not known."""
        return self.machine.get("vectors")

    @property
    def num(self) -> int:
        """Repetitions. Each asks the stock engine once."""
        return len(self.times[STOCK])

    def sooner(self, series: str) -> list[float]:
        """How many times longer stock takes, in each repetition."""
        stock = self.times[DEFAULTS if series.endswith(AT_DEFAULTS) else STOCK]
        parts = by_repetition(self.times[series], self.num)
        return [slow / statistics.median(part) for slow, part in zip(stock, parts, strict=True)]

    def __str__(self) -> str:
        busy = f"; BUSY: {self.busy}" if self.busy else ""
        return f"{self.num} repetitions on {cpu_of(self.machine)}, {self.machine.get('cores')} cores{busy}"


@dataclass(frozen=True, slots=True)
class Beside:
    """One series. The ends of both intervals, None where there are too few repetitions, and where `here` lies."""

    series: str
    there: Sequence[float]
    here: Sequence[float] | None
    place: str


def committed_fold(folder: Path, vectors: str | None) -> tuple[MeasuredFold, bool]:
    """The committed run of a processor with such vectors, and whether there is one. Else the first one, to be told.

    Raises AcmError where none is committed.
    """
    there = [read_fold(file) for name in KINDS_OF_PROCESSORS if (file := folder / f"{name}.json").is_file()]
    if not there:
        there = [read_fold(folder / f"{MADE_BY}.json")]
    same = [one for one in there if one.vectors == vectors]
    return (same or there)[0], bool(same)


def compare_folds(there: MeasuredFold, here: MeasuredFold) -> list[Beside]:
    """Each series that the README tells. Pure."""
    found = []
    for series in TIMES:
        ends = repeated_ratio_interval(there.sooner(series))
        if min(there.num, here.num) < LEAST_REPETITIONS or not here.times.get(series):
            found.append(Beside(series, ends, None, TOO_FEW))
            continue
        low, high = repeated_ratio_interval(here.sooner(series))
        place = ABOVE if low > ends[1] else BELOW if high < ends[0] else WITHIN
        found.append(Beside(series, ends, [low, high], place))
    return found


def read_fold(file: Path) -> MeasuredFold:
    """Raises AcmError where there is no such result, or none with times."""
    if not file.is_file():
        raise AcmError(f"{file} is missing: run `make evidence-quick`, or `acmserve bench edit --json {file}`")
    report: Any = json.loads(file.read_text(encoding="utf-8"))
    times: dict[str, list[float]] = cell_of(report, "fold")["seconds_to_first_token"]
    if not times:
        raise AcmError(f"{file} has no times, for its gate was red: {'; '.join(report['gate']['failures'][:3])}")
    return MeasuredFold(times, report.get("machine", {}), busy_line(report) if is_busy(report) else "")


def beside_lines(committed: Path, folder: Path, took: Mapping[str, str]) -> tuple[list[str], bool]:
    """A table for people, and whether nothing disagrees. `took` has the command and the time of other results."""
    here = read_fold(folder / f"{MADE_BY}.json")
    there, is_same_kind = committed_fold(committed, here.vectors)
    found = compare_folds(there, here)
    if not is_same_kind:
        found = [replace(one, place=ELSEWHERE) for one in found]
    lines = text_table(_HEADS, list(_rows(there, here, found)))
    lines += ["", f"committed: {there}", f"here:      {here}", "Seconds are those of each machine. Ratios are judged."]
    if here.num < LEAST_REPETITIONS:
        lines.append(f"TOO FEW: {here.num} of at least {LEAST_REPETITIONS} repetitions. Give --max-minutes more.")
    elsewhere = [one.series for one in found if one.place != WITHIN]
    if is_same_kind:
        lines.append(f"OUTSIDE or not judged: {', '.join(elsewhere)}" if elsewhere else "All ratios agree.")
    else:
        lines += _cannot_compare(here)
    for column, name in NOT_REPEATED.items():
        lines.append(f"Not repeated: {column.replace('`', '')} ({took[name]}).")
    return lines, not (is_same_kind and elsewhere)


def _cannot_compare(here: MeasuredFold) -> list[str]:
    """Why nothing is judged, and for the kind that has a file of its own how to record it."""
    kind = here.vectors or "instructions that are not known"
    why = (
        f"NOT COMPARED: no committed run is of a processor with {kind}. On another kind stock's times are others, "
        "so nothing fails."
    )
    return [why, *([f"To record one: acmserve bench reruns --run --only {WITH_AMX}"] if here.vectors == AMX else [])]


def _rows(there: MeasuredFold, here: MeasuredFold, found: Sequence[Beside]) -> Iterator[list[str]]:
    for one in found:
        cells = []
        for side, ends in ((there, one.there), (here, one.here)):
            times = side.times.get(one.series)
            told = ratio(statistics.geometric_mean(side.sooner(one.series))) if times else ""
            cells += [seconds(statistics.median(times), 2) if times else "", told + interval(ends)]
        yield [one.series, *cells, one.place]
