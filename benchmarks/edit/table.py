"""The tables of `bench edit`, and what other pages quote of its reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.markdown_text import count, milliseconds

_TURNS = {
    ("fold", "append"): "plain append, {} new tokens",
    ("fold", "reuse"): "fold, `reuse`",
    ("two-holes", "append"): "plain append, {} new tokens",
    ("two-holes", "reuse"): "two folds, `reuse`",
    ("fold", "repair"): "fold, `repair`",
    ("fold", "auto"): "fold, `auto`",
    ("two-holes", "auto"): "two folds, `auto`",
    ("fold", "exact"): "fold, `exact` (default)",
    ("fold", "stock"): "fold, stock vLLM, same flags",
    ("fold", "append@defaults"): "plain append at vLLM's defaults",
    ("fold", "reuse@defaults"): "fold, `reuse`, at vLLM's defaults",
    ("fold", "repair@defaults"): "fold, `repair`, at vLLM's defaults",
    ("fold", "auto@defaults"): "fold, `auto`, at vLLM's defaults",
    ("fold", "exact@defaults"): "fold, `exact` (default), at vLLM's defaults",
    ("fold", "defaults"): "fold, stock vLLM at its own defaults",
}
_TITLES = {"two-holes": "two folds"}
_KINDS = ("append", "reuse", "repair", "exact", "stock", "llamacpp")


def cell_of(report: Report, kind: str) -> Any:
    """What was measured of one kind of edit."""
    (cell,) = (cell for cell in report["cells"] if cell["kind"] == kind)
    return cell


def times_sooner(report: Report, series: str = "reuse", stock: str = "stock") -> float:
    """How many times sooner than on a stock vLLM the first token comes after a fold."""
    medians = cell_of(report, "fold")["medians"]
    return float(medians[stock] / medians[series])


def _turns(report: Report) -> Iterator[list[str]]:
    cells = {cell["kind"]: cell for cell in report["cells"]}
    for (kind, series), title in _TURNS.items():
        if series in cells.get(kind, {}).get("medians", ()):
            times, receipt = cells[kind]["seconds_to_first_token"][series], cells[kind]["receipts"].get(series, {})
            spread = f"{1e3 * min(times):,.0f} to {1e3 * max(times):,.0f} ms"
            tokens = [count(receipt.get(f"{part}_tokens")) for part in ("kept", "moved", "computed")]
            name = title.format(cells[kind]["new_tokens"])
            yield [name, milliseconds(cells[kind]["medians"][series]), spread, *tokens]


def _kinds(report: Report) -> Iterator[list[str]]:
    for cell in report["cells"]:
        evaluated = cell["receipts"].get("llamacpp", {}).get("computed_tokens")
        times = [milliseconds(cell["medians"].get(name)) for name in _KINDS]
        yield [_TITLES.get(cell["kind"], cell["kind"]), *times, count(evaluated)]


TURNS = ResultTable(("turn", "median", "range", "kept", "moved", "computed"), _turns)
KINDS_TABLE = ResultTable(
    (
        "edit",
        "append of as many",
        "`reuse`",
        "`repair`",
        "`exact`",
        "stock vLLM",
        "llama.cpp",
        "tokens it evaluates",
    ),
    _kinds,
)
