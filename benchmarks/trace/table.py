"""The report of `bench trace`: JSON-ready rows, and the tables that people read. No numbers where the gate is red."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.markdown_text import count, ratio, seconds
from acmserve.bench.harness.options import as_gate
from acmserve.bench.trace.peer_servers import EXACT, LLAMA_CPP, NO_PREFIX, REUSE, STOCK, STOCK_DEFAULTS
from acmserve.bench.trace.score import (
    GOODPUT_LIMITS,
    NOT_COMPARED,
    ReplayCell,
    as_row,
    check_cell,
    compare_with_stock,
    prompt_notes,
)

_SERVERS = {
    REUSE: "acmserve, `reuse`",
    EXACT: "acmserve, `exact`",
    STOCK: "vLLM with prefix caching",
    STOCK_DEFAULTS: "vLLM at its own defaults",
    LLAMA_CPP: "llama.cpp with `--cache-reuse`",
    NO_PREFIX: "vLLM with its cache switched off",
}
_POLICIES = {"cwl": "CWL in batches", "recency@1": "oldest first, whenever it is full"}


def as_report(cells: Sequence[ReplayCell], budget: int) -> dict[str, Any]:
    """The gate, what is only noted, and one row for each cell."""
    num_compared, differing = compare_with_stock(cells)
    failures = [failure for cell in cells for failure in check_cell(cell, budget)] + differing
    rows = [] if failures else [as_row(cell) for cell in cells]
    return {
        "gate": as_gate(failures),
        "answers_compared_with_stock": num_compared,
        "notes": [*prompt_notes(cells), *([] if num_compared else [NOT_COMPARED])],
        "rows": rows,
    }


def _servers(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        name = _SERVERS.get(row["server"], row["title"])
        after = row["first_token_seconds_after_edit"]
        yield [
            _POLICIES.get(row["policy"], row["policy"]),
            name,
            ratio(row["turns_per_second"]["median"]),
            count(row["computed_tokens"]),
            str(row["num_edits"]),
            seconds(after["p50"]) if after else "",
        ]


def _waits(report: Report) -> Iterator[list[str]]:
    """Files of older runs have first tokens alone."""
    for row in report["rows"]:
        if "turn_seconds" in row:
            yield [
                _POLICIES.get(row["policy"], row["policy"]),
                _SERVERS.get(row["server"], row["title"]),
                *(seconds(row["first_token_seconds"][name]) for name in ("p50", "p90", "p99")),
                seconds(statistics.median(row["waited_seconds"])),
                seconds(row["turn_seconds"]["p50"]),
                *(ratio(found) for found in row["goodput"].values()),
            ]


def _notes(report: Report) -> Iterator[list[str]]:
    yield from ([note] for note in report["notes"])
    if num_compared := report.get("answers_compared_with_stock"):
        yield [f"{num_compared} answers of exact are stock's, token for token"]


SERVERS = ResultTable(
    (
        "policy of the client",
        "server",
        "turns a second",
        "tokens computed",
        "edits",
        "first token after an edit, median",
    ),
    _servers,
)
WAITS = ResultTable(
    (
        "policy of the client",
        "server",
        "first token, p50",
        "p90",
        "p99",
        "all waiting",
        "whole turn, p50",
        *(f"turns a second within {limit:g} s" for limit in GOODPUT_LIMITS),
    ),
    _waits,
)
NOTES = ResultTable(("notes",), _notes)
