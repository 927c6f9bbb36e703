"""What the generated page of benchmarks is made of: sections and tables, as data.

A section reads its JSON files and makes cells out of them. It knows neither Markdown nor the other sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from acmserve.bench.agent.result_table import Report, ResultTable

Reports = Mapping[str, Report]
"""File name without `.json` -> its content."""


@dataclass(frozen=True, slots=True)
class PageTable:
    """`rows` makes the cells out of the reports. `caption` stands above, where a section has several tables."""

    heads: Sequence[str]
    rows: Callable[[Reports], Iterable[Sequence[str]]]
    caption: str = ""


def page_table(table: ResultTable, *files: str, caption: str = "") -> PageTable:
    """The rows of a benchmark's own table, file after file."""

    def rows(reports: Reports) -> list[Sequence[str]]:
        return [row for name in files for row in table.rows(reports[name])]

    return PageTable(table.heads, rows, caption or table.caption)


@dataclass(frozen=True, slots=True)
class PageSection:
    """One benchmark. `files` are its results without `.json`. `notes` are what a reader has to know beside the numbers.

    `answer` is what the numbers say to the question, in a sentence or two. All else is folded below it. Neighbours of
    one `group` are folded together, too.
    A note is a text, or makes one out of the reports where it has a number. One that `is_optional` is left out while a
    file of its results is missing: it takes long, or wants a machine of its own.
    """

    title: str
    question: str
    command: str
    gate: str
    files: Sequence[str]
    tables: Sequence[PageTable]
    notes: Sequence[str | Callable[[Reports], str]] = ()
    plot: str = ""
    is_optional: bool = False
    answer: str | Callable[[Reports], str] = ""
    group: str = ""
