"""How high the page of benchmarks is before anybody unfolds anything, in pixels, by stated heights of its parts.

    heading, paragraph, bullet, picture, row of a table, folded part    each a height, times the lines that it wraps to

The column is 700 pixels wide, as that of the built pages. A part of the page that is folded has the height of its
summary, whatever is in it. Heights are rather too large, and a test holds them against a browser where there is one.

Decision: the page that is written has a bound, and a name of a field of some result stands nowhere on it. Both are
checked before it is written, so that no page is made that a reader has to scroll for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from acmserve.bench.provenance.repetitions import objects_in
from acmserve.errors import AcmError

MOST_PIXELS = 5_000
WIDTH = 700
_CHAR, _LINE, _GAP = 8.0, 26, 16
"""Pixels of a letter and of a line of ordinary text, and what stands below a paragraph."""
_CELL_CHAR, _CELL_LINE, _CELL_GAP, _CELL_SIDES = 7.0, 21, 25, 40
"""The same in a cell of a table, whose text is smaller, and the room beside it."""
_HEADINGS = {"# ": 90, "## ": 80, "### ": 62}
_PICTURE, _SUMMARY = 420, 52
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_WORD = re.compile(r"\w+")


def height_of(page: str) -> int:
    """Pixels of a page of ours, as Markdown, with everything folded that can be."""
    return sum(_heights(list(shown_lines(page))))


def shown_lines(page: str) -> Iterator[str]:
    """The lines outside of folded parts, and the summaries of these."""
    depth = 0
    for line in page.splitlines():
        if line.startswith("<details"):
            depth += 1
        elif line.startswith("</details>"):
            depth -= 1
        elif depth == 0 or (depth == 1 and line.startswith("<summary>")):
            yield line


def _heights(lines: Sequence[str]) -> Iterator[int]:
    for kind, some in groupby(lines, key=_kind):
        part = list(some)
        if kind == "table":
            yield _table_height([_cells(line) for line in part if set(line) - set("| -")])
        elif kind == "text":
            yield _num_lines(" ".join(part), WIDTH) * _LINE + _GAP
        elif kind in ("bullet", "summary", "picture", "heading"):
            yield sum(_one_height(kind, line) for line in part)


def _kind(line: str) -> str:
    if not line.strip() or line.startswith("<!--"):
        return "nothing"
    for kind, starts in (
        ("table", "|"),
        ("bullet", "- "),
        ("summary", "<summary>"),
        ("picture", "!["),
        ("heading", "#"),
    ):
        if line.startswith(starts):
            return kind
    return "text"


def _one_height(kind: str, line: str) -> int:
    if kind == "bullet":
        return _num_lines(line, WIDTH - 40) * _LINE + _GAP // 2
    if kind == "heading":
        return _HEADINGS[line[: line.index(" ") + 1]]
    return _PICTURE if kind == "picture" else _SUMMARY


def _table_height(rows: Sequence[Sequence[str]]) -> int:
    """Columns share the width by how much they have to say, none below its longest word."""
    columns = list(zip(*rows, strict=True))
    least = [max(_CELL_CHAR * max(map(len, cell.split()), default=0) for cell in column) for column in columns]
    wanted = [max(_CELL_CHAR * len(cell) for cell in column) for column in columns]
    room = WIDTH - _CELL_SIDES * len(columns) - sum(least)
    missing = sum(wanted) - sum(least)
    share = min(1.0, max(0.0, room / missing)) if missing else 0.0
    widths = [low + share * (high - low) for low, high in zip(least, wanted, strict=True)]
    return sum(
        max(_num_lines(cell, width, _CELL_CHAR) for cell, width in zip(row, widths, strict=True)) * _CELL_LINE
        + _CELL_GAP
        for row in rows
    )


def _cells(line: str) -> list[str]:
    return [_plain(cell.strip()) for cell in line.strip().strip("|").replace("\\|", "/").split("|")]


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).replace("`", "").replace("*", "")


def _num_lines(text: str, width: float, char: float = _CHAR) -> int:
    """Lines that text wraps to, word by word."""
    num_lines, used = 1, 0.0
    for word in _plain(text).split():
        length = char * (len(word) + 1)
        if used and used + length - char > width:
            num_lines, used = num_lines + 1, 0.0
        used += length
    return num_lines


def raw_keys(page: str, results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of fields of results that stand on the page, such as `first_token_seconds`. Links and commands aside.

    A policy is what people name in a request, so it is none, where results are kept by policy. Neither is a tool.
    """
    parts = [part for result in results for part in objects_in(result)]
    named = {str(part.get("policy")) for part in parts} | {str(tool) for part in parts for tool in _tools_in(part)}
    keys = {str(key) for part in parts for key in part if "_" in str(key)} - named
    text = "\n".join(line for line in _LINK.sub(r"\1", page).splitlines() if not line.startswith("**Command**:"))
    return sorted(keys & set(_WORD.findall(text)))


def _tools_in(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tools that a model called, each with how often."""
    tools = part.get("tools")
    return tools if isinstance(tools, Mapping) else {}


def check_page(page: str, results: Iterable[Mapping[str, Any]]) -> None:
    """Raises AcmError where the page is too high, or shows what only a program reads."""
    if (height := height_of(page)) > MOST_PIXELS:
        raise AcmError(f"the page is {height:,} pixels high before anything is unfolded, {MOST_PIXELS:,} at most")
    if found := raw_keys(page, results):
        raise AcmError(f"the page shows names of fields: {', '.join(found)}")
