"""The parts of a request, added up: what the plugin does more, beside what stock vLLM does for the same request.

    own       HTTP + scheduler + worker, with the plugin less without it
    strict    own : HTTP + scheduler of stock
    host      own : HTTP + scheduler + worker of stock, with hardly any arithmetic of a model
    whole     own : HTTP + scheduler + worker of stock, with SmolLM2 in it

Where a card computes, the share of the host's processor is the second. On a processor it is the last. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_SHARE = 0.01
STOCK, PLUGIN = "stock", "acmserve"
HTTP_KINDS = {"whole": "an answer in one piece", "streamed": "a streamed answer"}
STRICT, HOST, WHOLE = "strict", "host", "whole"
SHARES = {
    STRICT: "HTTP and scheduler alone",
    HOST: "with the worker, and hardly any arithmetic",
    WHOLE: "with the forward pass of SmolLM2 on the processor",
}
"""What the plugin's own instructions are divided by."""

Columns = Mapping[str, int]


def add_up(http: Mapping[str, Columns], engine: Mapping[str, Mapping[str, Columns]], forward: int | None) -> list[Any]:
    """A row for each kind of answer and each number of requests at a time. All counts are those of one request.

    `engine` is by the number of requests at a time, then by its part. `forward` is the worker's count for SmolLM2 with
    one request at a time, None where nobody counted it.
    """
    rows = []
    for at_a_time, parts in engine.items():
        for kind, served in http.items():
            columns = {"http": served, **parts}
            own = {name: found[PLUGIN] - found[STOCK] for name, found in columns.items()}
            stock = {name: found[STOCK] for name, found in columns.items()}
            beside = {STRICT: stock["http"] + stock["scheduler"]}
            beside[HOST] = beside[STRICT] + stock["worker"]
            if forward is not None and at_a_time == "1":
                beside[WHOLE] = beside[STRICT] + forward
            row = {"answer": kind, "at_a_time": int(at_a_time), "own": own, "stock": beside}
            rows.append(row | {"shares": {name: round(sum(own.values()) / all_, 5) for name, all_ in beside.items()}})
    return rows


def judge(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The bar of one hundredth, for each of the three shares. Its worst row decides."""
    bars = []
    for name in SHARES:
        found = [row["shares"][name] for row in rows if name in row["shares"]]
        if found:
            bars.append({"what": name, "value": max(found), "bar": MAX_SHARE, "is_met": max(found) <= MAX_SHARE})
    return bars
