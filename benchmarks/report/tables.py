"""The tables of one benchmark's report, out of its JSON: one renderer for each shape that is known, one for the rest.

The rest is shown by what it is made of, so that a benchmark that nobody has thought of here still reads well:

    list of objects            a table; a column for each number, text, or short list of them
    list of long texts         a list
    object of like objects     the same, with the key in front
    list of deep objects       a heading for each, and what it is made of
    object of numbers, texts   a table of two columns
    long list of numbers       how many, least and most

It knows no file and no page.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from acmserve.bench.report.html import Markup, join, tag

# Shown in the head of a section, or not numbers that anybody reads in a table.
_HEAD = ("machine", "gate", "correct", "model", "receipts", "turns", "questions", "moves")
_UNITS = {"_gb_s": "GB/s", "_ms": "ms", "_us": "µs", "_s": "s"}
_MOST_SHOWN, _MOST_DEPTH = 8, 3
_LONG_TEXT = 32
_MOST_ROWS = 60
_SPREAD = {"median", "min", "max"}

Report = Mapping[str, Any]


def tables(report: Report) -> Iterator[Markup]:
    """Everything that is told of one report, in its order."""
    for fits, render in _SHAPES:
        if fits(report):
            yield from render(report)
            return
    yield from _anything(report)


def _is_edit(report: Report) -> bool:
    return {"seconds_to_first_token", "medians", "receipts", "ratios"} <= report.keys()


def _edit(report: Report) -> Iterator[Markup]:
    """The README's table: turns, with what their receipts say, and the ratios with their targets."""
    rows = []
    for case, seconds in report["seconds_to_first_token"].items():
        receipt = report["receipts"].get(case, {})
        counts = [_cell(receipt.get(f"{name}_tokens")) for name in ("kept", "moved", "computed")]
        rows.append([case, f"{1e3 * statistics.median(seconds):,.0f}", _range_ms(seconds), *counts])
    yield _table(["turn", "median (ms)", "range (ms)", "kept", "moved", "computed"], rows)
    ratios = [
        [f"{row['case']} / {row['base']}", f"{row['ratio']:.3f}", f"{row['target']:.3f}", _met(row)]
        for row in report["ratios"]
    ]
    if ratios:
        yield _table(["ratio of medians", "measured", "target", ""], ratios)


def _met(row: Report) -> str:
    return "met" if row["ratio"] <= row["target"] else "missed"


def _range_ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * min(seconds):,.0f} to {1e3 * max(seconds):,.0f}"


def _is_cells(report: Report) -> bool:
    return {"cells", "series"} <= report.keys()


def _cells(report: Report) -> Iterator[Markup]:
    """Kinds of edits: a table for each size and position."""
    series = report["series"]
    for place in dict.fromkeys((row["context_tokens"], row["position"]) for row in report["cells"]):
        rows = [row for row in report["cells"] if (row["context_tokens"], row["position"]) == place]
        yield tag("h3", f"{place[0]:,} tokens of context, edit in the {place[1]}; median ms to the first token")
        yield _table(
            ["kind", *series, "kept", "moved", "computed"],
            [
                [
                    row["kind"],
                    *(_milliseconds(row["seconds_to_first_token"].get(name)) for name in series),
                    *(
                        _cell(row["receipts"].get("reuse", {}).get(f"{n}_tokens"))
                        for n in ("kept", "moved", "computed")
                    ),
                ]
                for row in rows
            ],
        )


def _milliseconds(seconds: Sequence[float] | None) -> str:
    return f"{1e3 * statistics.median(seconds):,.0f}" if seconds else "gate red"


_SHAPES: tuple[tuple[Callable[[Report], bool], Callable[[Report], Iterator[Markup]]], ...] = (
    (_is_edit, _edit),
    (_is_cells, _cells),
)


def _anything(value: Report, depth: int = 0) -> Iterator[Markup]:
    shown = {key: part for key, part in value.items() if key not in _HEAD}
    plain = [[_title(key), _cell(part)] for key, part in shown.items() if _is_plain(part)]
    if plain:
        yield _table(["", ""], plain)
    for key, part in shown.items():
        if _is_plain(part) or not part:
            continue
        body = list(_part(part, depth))
        if body:
            yield tag("h3", _title(key))
            yield from body


def _part(part: Any, depth: int) -> Iterator[Markup]:
    objects = [one for one in part if isinstance(one, Mapping)] if isinstance(part, list) else []
    if isinstance(part, list) and not objects:
        yield tag("ul", *(tag("li", _cell(one)) for one in part if _is_plain(one)))
    elif any(_is_deep(one) for one in objects) and depth < _MOST_DEPTH:
        for one in objects:
            yield tag("h4", _name(one))
            yield from _anything(one, depth + 1)
    elif objects:
        yield _rows([("", one) for one in objects])
    elif isinstance(part, Mapping) and part and all(isinstance(one, Mapping) for one in part.values()):
        yield _rows(list(part.items()))
    elif isinstance(part, Mapping) and depth < _MOST_DEPTH:
        yield from _anything(part, depth + 1)


def _rows(rows: Sequence[tuple[str, Report]]) -> Markup:
    """A column for each key that holds something plain in any row, objects inside opened once."""
    flat = [_flat(row) for _, row in rows]
    keys = list(dict.fromkeys(key for row in flat for key, value in row.items() if value not in (None, "")))
    named = any(name for name, _ in rows)
    heads = ["", *map(_title, keys)] if named else list(map(_title, keys))
    names = [[name] if named else [] for name, _ in rows]
    cells = [[*name, *(_cell(row.get(key)) for key in keys)] for name, row in zip(names, flat, strict=True)]
    left = len(cells) - _MOST_ROWS
    note = [tag("p", f"and {left:,} more rows in the JSON file")] if left > 0 else []
    return join([_table(heads, cells[:_MOST_ROWS]), *note])


def _is_deep(one: Report) -> bool:
    """Whether an object holds tables of its own, which a row has no place for."""
    shown = (part for key, part in one.items() if key not in _HEAD)
    return any(isinstance(part, list) and any(isinstance(item, Mapping) for item in part) for part in shown)


def _name(one: Report) -> str:
    """What an object is called: its first texts."""
    return ", ".join([str(part) for part in one.values() if isinstance(part, str)][:2])


def _flat(row: Report) -> dict[str, Any]:
    found = {}
    for key, part in row.items():
        if key in _HEAD:
            continue
        if _is_plain(part):
            found[key] = part
        elif isinstance(part, Mapping) and part.keys() == _SPREAD:
            found[key] = f"{_cell(part['median'])} ({_cell(part['min'])} to {_cell(part['max'])})"
        elif isinstance(part, Mapping):
            found |= {f"{key} {inner}": value for inner, value in part.items() if _is_plain(value)}
    return found


def _is_plain(part: Any) -> bool:
    """A number, a text, nothing, or a list of numbers and short texts."""
    if isinstance(part, list):
        return bool(part) and all(one is None or isinstance(one, str | int | float) for one in part) and not _long(part)
    return part is None or isinstance(part, str | int | float)


def _long(part: Sequence[Any]) -> bool:
    return any(isinstance(one, str) and len(one) > _LONG_TEXT for one in part)


def _cell(value: Any) -> str:
    """A value for people: numbers with separators, at three digits behind the first."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list):
        return _list(value)
    return str(value)


def _list(values: Sequence[Any]) -> str:
    if len(values) <= _MOST_SHOWN:
        return ", ".join(_cell(value) for value in values)
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return f"{len(values)} values"
    return f"{len(values)} values, {_cell(min(numbers))} to {_cell(max(numbers))}"


def _title(key: str) -> str:
    """`memcpy_gb_s` reads `memcpy (GB/s)`."""
    for ending, unit in _UNITS.items():
        if key.endswith(ending):
            return f"{key.removesuffix(ending).replace('_', ' ')} ({unit})"
    return key.removeprefix("num_").replace("_", " ")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """In a box of its own that scrolls sideways; numbers stand at the right, long texts are broken."""
    head = tag("tr", *(tag("th", one) for one in heads)) if any(heads) else Markup("")
    body = [tag("tr", *(tag("td", cell, **_side(cell)) for cell in row)) for row in rows]
    return tag("div", tag("table", head, *body), class_="wide")


def _side(cell: str) -> dict[str, str]:
    digits = "".join(takewhile(lambda char: char in "0123456789.,-+%e", cell))
    if cell and len(digits) == len(cell):
        return {"class_": "n"}
    return {"class_": "long"} if len(cell) > _LONG_TEXT else {}
