"""The tables and the plot of `bench scale`. Pure but for the file that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.figure import MISSING, open_figure
from acmserve.bench.harness.markdown_text import count, interval, milliseconds, ratio, share

_SERIES = ("append", "reuse", "exact", "stock", "defaults")
_TITLES = {
    "append": "append of as many new tokens",
    "reuse": "fold, reuse",
    "exact": "fold, exact",
    "stock": "fold, stock vLLM, same flags",
    "defaults": "fold, stock vLLM at its own defaults",
}


def by_length(report: Report) -> list[Any]:
    """The cells that differ in length alone, shortest first."""
    cells = [cell for cell in report["cells"] if cell["num_holes"] == 1 and cell["front_share"] == 0.1]
    return sorted(cells, key=lambda cell: int(cell["context_tokens"]))


def _by_place(report: Report) -> list[Any]:
    others = [cell for cell in report["cells"] if cell["front_share"] != 0.1]
    return _beside_first(report, others, lambda cell: float(cell["front_share"]))


def _by_holes(report: Report) -> list[Any]:
    others = [cell for cell in report["cells"] if cell["num_holes"] != 1]
    return _beside_first(report, others, lambda cell: float(cell["num_holes"]))


def _beside_first(report: Report, others: list[Any], order: Callable[[Any], float]) -> list[Any]:
    """Cells of one length, with that one early hole of the same length that they are compared with."""
    lengths = {cell["context_tokens"] for cell in others}
    return sorted([*others, *(cell for cell in by_length(report) if cell["context_tokens"] in lengths)], key=order)


def _table(cells: Callable[[Report], list[Any]], head: str, first: Callable[[Any], str]) -> ResultTable:
    heads = (head, "new tokens", "moved", "`append`", "`reuse`", "p90", "appends", "`exact`", "stock", "defaults")

    def rows(report: Report) -> Iterator[list[str]]:
        for cell in cells(report):
            medians, receipt = cell.get("medians", {}), cell["receipts"].get("reuse", {})
            appends = ratio(cell["appends"]) + interval(cell["appends_interval"]) if medians else ""
            yield [
                first(cell),
                count(cell["new_tokens"]),
                count(receipt.get("moved_tokens")),
                milliseconds(medians.get("append")),
                milliseconds(medians.get("reuse")),
                milliseconds(cell.get("p90", {}).get("reuse")),
                appends,
                *(milliseconds(medians.get(name)) for name in _SERIES[2:]),
            ]

    return ResultTable(heads, rows)


LENGTHS = _table(by_length, "context", lambda cell: count(cell["context_tokens"]))
PLACES = _table(_by_place, "in front of the edit", lambda cell: share(cell["front_share"]))
HOLES = _table(_by_holes, "holes", lambda cell: count(cell["num_holes"]))


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
    for name in _SERIES:
        points = [(cell["context_tokens"], cell["medians"][name]) for cell in cells if name in cell["medians"]]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=_TITLES[name])
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
