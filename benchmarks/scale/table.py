"""The tables and the plot of `bench scale`. Pure but for the file that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.edit.receipts import told_tokens
from acmserve.bench.edit.times import AT_DEFAULTS, DEFAULTS
from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.harness.markdown_text import MET, MISSED, NOT_MEASURED, count, interval, milliseconds, ratio, share
from acmserve.bench.scale.bars import by_holes, by_length

_TITLES = {
    "append": "append of as many new tokens, float32",
    "reuse": "fold, reuse, float32",
    "auto": "fold, auto, float32",
    "exact": "fold, exact, float32",
    "stock": "fold, stock vLLM, float32",
    "append@defaults": "append, vLLM's defaults",
    "reuse@defaults": "fold, reuse, vLLM's defaults",
    "auto@defaults": "fold, auto, vLLM's defaults",
    "defaults": "fold, stock vLLM at its own defaults",
}


def _by_place(report: Report) -> list[Any]:
    """Cells with another place, and the early hole of the same length that they are compared with."""
    others = [cell for cell in report["cells"] if cell["front_share"] != 0.1]
    lengths = {cell["context_tokens"] for cell in others}
    first = [cell for cell in by_length(report) if cell["context_tokens"] in lengths]
    return sorted([*first, *others], key=lambda cell: float(cell["front_share"]))


def _rows(
    cells: Callable[[Report], list[Any]], first: Callable[[Any], str], end: str, report: Report
) -> Iterator[list[str]]:
    """Of what was measured at these settings. Files of older runs have no `auto`, and nothing at defaults but stock."""
    for cell in cells(report):
        medians = cell.get("medians", {})
        if f"reuse{end}" not in medians:
            continue
        found = cell[DEFAULTS] if end else cell
        yield [
            first(cell),
            count(cell["new_tokens"]),
            told_tokens(cell, f"reuse{end}", "moved"),
            milliseconds(medians[f"append{end}"]),
            milliseconds(medians[f"reuse{end}"]),
            milliseconds(found["p90"]["reuse"]),
            ratio(found["appends"]) + interval(found["appends_interval"]),
            milliseconds(medians.get(f"auto{end}")),
            told_tokens(cell, f"auto{end}", "computed"),
            *([] if end else [milliseconds(medians.get("exact"))]),
            milliseconds(medians.get(DEFAULTS if end else "stock")),
        ]


def _tables(
    cells: Callable[[Report], list[Any]], head: str, first: Callable[[Any], str]
) -> tuple[ResultTable, ResultTable]:
    """At vLLM's own defaults, and at the flags that `acmserve serve` takes on a CPU."""
    heads = (head, "new tokens", "moved", "`append`", "`reuse`", "p90", "appends", "`auto`", "it computes")
    return (
        ResultTable(
            (*heads, "stock"),
            partial(_rows, cells, first, AT_DEFAULTS),
            "Acmserve and stock at vLLM's own defaults: the model's own precision, and compiled.",
        ),
        ResultTable((*heads, "`exact`", "stock"), partial(_rows, cells, first, ""), "All in float32, and eager."),
    )


LENGTHS_AT_DEFAULTS, LENGTHS = _tables(by_length, "context", lambda cell: count(cell["context_tokens"]))
PLACES_AT_DEFAULTS, PLACES = _tables(_by_place, "in front of the edit", lambda cell: share(cell["front_share"]))
HOLES_AT_DEFAULTS, HOLES = _tables(by_holes, "holes", lambda cell: count(cell["num_holes"]))
TIMES_TABLES = (LENGTHS_AT_DEFAULTS, LENGTHS, PLACES_AT_DEFAULTS, PLACES, HOLES_AT_DEFAULTS, HOLES)


def _bars(report: Report) -> Iterator[list[str]]:
    """Files of older runs have none."""
    for bar in report.get("bars", ()):
        value = "" if bar["value"] is None else f"{ratio(bar['value'])}{interval(bar['interval'])}"
        met = MET if bar["is_met"] else MISSED if value else NOT_MEASURED
        yield [bar["what"], value, f"at {'most' if bar['is_most'] else 'least'} {ratio(bar['bar'], 1)}", met]


BARS = ResultTable(
    ("ratio", "seen", "to be", "bar"), _bars, "A bar is met by that end of the 95 % interval that is worse."
)


def _counts(report: Report) -> Iterator[list[str]]:
    for cell in report["cells"]:
        receipts = cell["receipts"]
        where = [count(cell["context_tokens"]), share(cell["front_share"]), count(cell["num_holes"])]
        told = [receipts["reuse"][f"{part}_tokens"] for part in ("kept", "moved", "computed")]
        yield [*where, count(cell["new_tokens"]), *map(count, told), count(receipts["exact"]["computed_tokens"])]


COUNTS = ResultTable(
    ("context", "in front of the edit", "holes", "new", "kept", "moved", "computed", "computed under `exact`"), _counts
)


def draw_scale(report: dict[str, Any], machine: str, file: Path) -> str | None:
    """Seconds to the first token by length of the context, both logarithmic. Why there is no plot, or None."""
    cells = [cell for cell in by_length(report) if "medians" in cell]
    if not cells:
        return "no plot: tokens were counted, and no time was taken"
    figure = open_figure(7.5, 4.5)
    if figure is None:
        return MISSING
    axes = figure.add_subplot()
    for name in _TITLES:
        points = [(cell["context_tokens"], cell["medians"][name]) for cell in cells if name in cell["medians"]]
        style = "-" if name.endswith(DEFAULTS) else ":"
        if points:
            axes.plot(*zip(*points, strict=True), style, marker="o", label=_TITLES[name])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([cell["context_tokens"] for cell in cells], [f"{cell['context_tokens']:,}" for cell in cells])
    axes.set_xlabel("tokens of the context before the edit")
    axes.set_ylabel("seconds to the first token (median)")
    axes.set_title(f"One fold behind the first tenth of a context\n{machine}", fontsize=9)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=150)
    return None
