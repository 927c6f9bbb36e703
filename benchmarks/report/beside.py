"""The README's times as a reader measured them, beside those that are committed: within their range or not.

    bench-results/edit-cpu.json   one run of `acmserve bench edit` on the reader's machine
    benchmarks/results            the committed ones, with all their repetitions

Another machine has other times. What has to hold there is the order, and the ratio to stock.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acmserve.bench.agent.text_table import text_table
from acmserve.bench.edit.table import at_defaults, cell_of
from acmserve.bench.edit.times import DEFAULTS, STOCK
from acmserve.bench.harness.markdown_text import ratio, seconds
from acmserve.errors import AcmError

MADE_BY = "edit-cpu"
_TOLD = ("exact", "auto", "repair", "reuse", STOCK)
TIMES = (*map(at_defaults, _TOLD), *_TOLD)
"""The series of a fold that the README tells. Each stands beside the stock engine of its own settings."""
_HEADS = ("fold", "committed", "range", "stock takes", "here", "stock takes", "is")


def beside_lines(committed: Path, folder: Path) -> list[str]:
    """A table for people. Raises AcmError where the folder has no result of `bench edit`."""
    file = folder / f"{MADE_BY}.json"
    if not file.is_file():
        raise AcmError(f"{file} is missing: run `make evidence-quick`, or `acmserve bench edit --json {file}`")
    return text_table(_HEADS, list(_rows(committed, _times(file))))


def _rows(committed: Path, here: dict[str, list[float]]) -> Iterator[list[str]]:
    there = _times(committed / f"{MADE_BY}.json")
    for series in TIMES:
        low, high = min(there[series]), max(there[series])
        times, found = statistics.median(there[series]), statistics.median(here[series])
        stock = [statistics.median(one[DEFAULTS if series.endswith(DEFAULTS) else STOCK]) for one in (there, here)]
        cells = [seconds(times, 2), f"{seconds(low, 2)} to {seconds(high, 2)}", f"{ratio(stock[0] / times, 1)} times"]
        place = "within it" if low <= found <= high else "below it" if found < low else "above it"
        yield [series, *cells, seconds(found, 2), f"{ratio(stock[1] / found, 1)} times", place]


def _times(file: Path) -> dict[str, list[float]]:
    report: Any = json.loads(file.read_text(encoding="utf-8"))
    times: dict[str, list[float]] = cell_of(report, "fold")["seconds_to_first_token"]
    if not times:
        raise AcmError(f"{file} has no times, for its gate was red: {'; '.join(report['gate']['failures'][:3])}")
    return times
