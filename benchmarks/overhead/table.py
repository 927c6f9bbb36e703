"""What a request without session pays, as tables: its parts, the kinds of a scheduler step, and the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.markdown_text import count
from acmserve.bench.overhead.totals import HTTP_KINDS, PLUGIN, SHARES, STOCK

_STEPS = {"decode": "64 requests decode", "prefill": "chunks alone", "mixed": "63 decode beside a chunk"}
_PARTS = {"scheduler": "scheduler", "worker": "worker, hardly any arithmetic"}


def _parts(report: Report) -> Iterator[list[str]]:
    for kind, found in report["http"].items():
        yield [f"HTTP, {HTTP_KINDS[kind]}", "1", *_cells(found)]
    for at_a_time, parts in report["engine"].items():
        for part, found in parts.items():
            yield [_PARTS[part], at_a_time, *_cells(found)]
    if report["forward"] is not None:
        yield ["worker, SmolLM2", "1", count(report["forward"]), "", ""]


def _cells(found: Mapping[str, int]) -> list[str]:
    return [count(found[STOCK]), f"{found[PLUGIN] - found[STOCK]:+,}", percent(found[PLUGIN] / found[STOCK] - 1)]


def _step_kinds(report: Report) -> Iterator[list[str]]:
    for kind, found in report["steps"].items():
        stock = found[STOCK]
        more = [percent(found[name] / stock - 1) for name in ("connector", PLUGIN)]
        yield [_STEPS[kind], count(stock), *more]


def _totals(report: Report) -> Iterator[list[str]]:
    for row in report["totals"]:
        shares = [percent(row["shares"][name]) if name in row["shares"] else "" for name in SHARES]
        own = sum(row["own"].values())
        yield [HTTP_KINDS[row["answer"]], str(row["at_a_time"]), count(own), *shares]


def percent(value: float) -> str:
    """`+0.84 %`."""
    return f"{100 * value:+.2f} %"


PARTS = ResultTable(
    ("part of a request", "at a time", "stock", "plugin", "beside stock"), _parts, "Instructions of one request"
)
STEP_KINDS = ResultTable(
    ("step", "stock", "vLLM's scheduler with the connector", "plugin on"), _step_kinds, "Instructions of one step"
)
TOTALS = ResultTable(
    ("request", "at a time", "plugin's own", *SHARES.values()),
    _totals,
    "The plugin's own instructions, as a share of those of stock vLLM",
)
