"""The tables of the suite, one for each kind of stage. A red stage tells its reasons, and the others their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, told_by
from acmserve.bench.gpu.stage import DECODE, FOLD, HOLES, OVERHEAD, SESSIONS, holds_bar
from acmserve.bench.harness.markdown_text import MET, MISSED, count, interval, milliseconds, ratio, seconds, share

_SERIES = ("append", "reuse", "exact", "stock")


def _kernel(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        speed = [f"{row[f'{name}_gb_s']:,.0f} GB/s" for name in ("move", "copy")]
        yield [row["model"], row["kv_type"], count(row["num_tokens"]), *speed, share(row["ratio"])]


def _fold(report: Report) -> Iterator[list[str]]:
    for cell in report["cells"]:
        medians, moved = cell.get("medians", {}), cell["receipts"].get("reuse", {}).get("moved_tokens")
        appends = ratio(cell["appends"]) + interval(cell["appends_interval"]) if medians else ""
        yield [
            count(cell["context_tokens"]),
            count(cell["num_holes"]),
            count(moved),
            *(milliseconds(medians.get(name)) for name in _SERIES),
            appends,
            *(_beside(cell.get("beside_stock", {}).get(name)) for name in ("reuse", "exact")),
        ]


def _holes(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        counts = (row[name] for name in ("computed_tokens", "steps_together", "steps_apart"))
        apart = (row[name] for name in ("difference", "difference_beside", "control_difference"))
        yield [row["holes"], *map(count, counts), *(f"{one:.2g}" for one in apart)]


def _sessions(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        after = row["first_token_seconds_after_edit"]
        yield [
            row["policy"],
            row["server"],
            ratio(row["turns_per_second"]["median"]),
            _beside(row["rate_beside_stock"]),
            *(seconds(row["first_token_seconds"][name], 3) for name in ("p50", "p90", "p99")),
            seconds(after["p50"], 3) if after else "",
            count(row["computed_tokens"]),
            ", ".join(f"{why}: {number}" for why, number in row["fallbacks"].items()),
        ]


def _overhead(report: Report) -> Iterator[list[str]]:
    """Judged anew, since files of older runs were judged by what was seen."""
    over, bar = report["over_stock"], report["bar"]
    by_end = ", by the interval's end" if over["ratio"] <= bar else ""
    met = MET if holds_bar(over, bar) else f"{MISSED}{by_end}"
    yield [count(report["turns"]), _beside(over, digits=4), f"{ratio(bar)}: {met}"]


def _decode(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        times = (f"{row[name]:.2f} ms" for name in ("token_ms", "chunk_ms", "added_ms"))
        hidden = "the chunks outlasted the answer"
        if not row["outlasted"]:
            hidden = ratio(row["hidden_share"]) + interval(row["hidden_interval"])
        yield [count(row["chunk_tokens"]), *times, hidden]


def _beside(found: Mapping[str, Any] | None, digits: int = 2) -> str:
    return "" if found is None else f"{ratio(found['ratio'], digits)}{interval(found['interval'], digits=digits)}"


KERNEL_TABLE = ResultTable(("model", "KV", "tokens", "move", "copy", "of a copy"), _kernel)
FOLD_TABLE = ResultTable(
    (
        *("context", "holes", "moved", "`append`", "`reuse`", "`exact`", "stock", "appends"),
        *("`reuse`, times sooner than stock", "`exact`"),
    ),
    _fold,
)
SESSIONS_TABLE = ResultTable(
    (
        *("sessions", "way", "turns a second", "beside stock", "first token, p50", "p90", "p99"),
        *("behind a fold, p50", "tokens computed", "fallbacks"),
    ),
    _sessions,
)
OVERHEAD_TABLE = ResultTable(("turns without a session", "time over stock's", "bar"), _overhead)
DECODE_TABLE = ResultTable(
    ("tokens of a chunk", "decode of a token", "chunk alone", "added to the answer", "share hidden"), _decode
)
HOLES_TABLE = ResultTable(
    (
        *("holes", "computed tokens", "forward passes", "of a step for each hole"),
        *("log-probabilities apart, in nats", "beside a decode", "read as one chunk"),
    ),
    _holes,
)
_TABLES = {
    HOLES: HOLES_TABLE,
    FOLD: FOLD_TABLE,
    OVERHEAD: OVERHEAD_TABLE,
    DECODE: DECODE_TABLE,
    SESSIONS: SESSIONS_TABLE,
}


def suite_lines(report: Report) -> list[str]:
    """What people read behind a run."""
    lines: list[str] = []
    for name, stage in report["stages"].items():
        table = _TABLES.get(name.partition("-")[0], KERNEL_TABLE)
        lines += ["", f"== {name}, {stage['stage_seconds']:.0f} s", *told_by(table)(stage)]
        lines += [f"left out: {one['what']}: {one['why']}" for one in stage.get("left_out", ())]
    lines += ["", *(f"left out: {one['stage']}: {one['why']}" for one in report["left_out"])]
    failures = report["gate"]["failures"]
    return [*lines, *(f"FAILED: {failure}" for failure in failures)] if failures else [*lines, "all gates green"]
