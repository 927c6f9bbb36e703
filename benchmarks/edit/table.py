"""The tables of `bench edit`, and what other pages quote of its reports. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval, nearest_rank
from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.edit.receipts import told_tokens
from acmserve.bench.edit.times import APPEND, AT_DEFAULTS, DEFAULTS, REUSE, STOCK, by_repetition
from acmserve.bench.harness.llama_cpp import BEST, OWN_DEFAULTS, LlamaWay
from acmserve.bench.harness.markdown_text import milliseconds

_TURNS = {
    ("fold", APPEND): "plain append, {} new tokens",
    ("fold", REUSE): "fold, `reuse`",
    ("two-holes", APPEND): "plain append, {} new tokens",
    ("two-holes", REUSE): "two folds, `reuse`",
    ("fold", "repair"): "fold, `repair`",
    ("fold", "auto"): "fold, `auto`",
    ("two-holes", "auto"): "two folds, `auto`",
    ("fold", "exact"): "fold, `exact` (default)",
    ("fold", STOCK): "fold, stock vLLM",
}
_TITLES = {"two-holes": "two folds"}
_KINDS = ("append", "reuse", "repair", "exact", "stock", BEST.name)
_NUM_SAMPLES = 2_000


def cell_of(report: Report, kind: str) -> Any:
    """What was measured of one kind of edit."""
    (cell,) = (cell for cell in report["cells"] if cell["kind"] == kind)
    return cell


def at_defaults(series: str) -> str:
    """The name of a series where nobody tuned the engine."""
    return DEFAULTS if series == STOCK else series + AT_DEFAULTS


def p90_of_slowest(times: Sequence[float], num: int) -> float:
    """The 90th percentile by the nearest rank of the slowest time in each of `num` repetitions. Of five it is the last.

    A series with more times in a repetition has no better percentile by that: it has to be quick in all of them.
    """
    return nearest_rank(sorted(map(max, by_repetition(times, num))), 0.9)


def times_sooner(report: Report, series: str, other: str) -> float:
    """How many times sooner than in `other` the first token comes after a fold, by medians."""
    times = cell_of(report, "fold")["seconds_to_first_token"]
    return float(statistics.median(times[other]) / statistics.median(times[series]))


def times_sooner_at_worst(report: Report, series: str, other: str) -> float:
    """The same by `p90_of_slowest`, of as many figures on either side."""
    cell = cell_of(report, "fold")
    ours, others = (
        p90_of_slowest(cell["seconds_to_first_token"][name], cell["num_repetitions"]) for name in (series, other)
    )
    return others / ours


def sooner_interval(report: Report, series: str, other: str) -> list[float]:
    """The 95 % bootstrap interval of `times_sooner` by medians, over repetitions: they have as many times each."""
    times = cell_of(report, "fold")["seconds_to_first_token"]
    num = cell_of(report, "fold")["num_repetitions"]
    pairs = list(zip(by_repetition(times[series], num), by_repetition(times[other], num), strict=True))

    def ratio(drawn: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        ours, others = ([seconds for part in side for seconds in part] for side in zip(*drawn, strict=True))
        return statistics.median(others) / statistics.median(ours)

    return bootstrap_interval(pairs, ratio, _NUM_SAMPLES)


def _turns(report: Report, name_of: Callable[[str], str]) -> Iterator[list[str]]:
    cells = {cell["kind"]: cell for cell in report["cells"]}
    for (kind, told), title in _TURNS.items():
        series = name_of(told)
        if series in cells.get(kind, {}).get("medians", ()):
            times = cells[kind]["seconds_to_first_token"][series]
            spread = f"{1e3 * min(times):,.0f} to {1e3 * max(times):,.0f} ms"
            tokens = [told_tokens(cells[kind], series, part) for part in ("kept", "moved", "computed")]
            name = title.format(cells[kind]["new_tokens"])
            yield [name, milliseconds(cells[kind]["medians"][series]), spread, *tokens]


def _kinds(report: Report) -> Iterator[list[str]]:
    for cell in report["cells"]:
        times = [milliseconds(cell["medians"].get(name)) for name in _KINDS]
        yield [_TITLES.get(cell["kind"], cell["kind"]), *times, _evaluated(cell, BEST)]


def _llama_ways(report: Report) -> Iterator[list[str]]:
    """Files of older runs have its best alone."""
    for cell in report["cells"]:
        if OWN_DEFAULTS.name in cell["medians"]:
            told = [(milliseconds(cell["medians"][way.name]), _evaluated(cell, way)) for way in (BEST, OWN_DEFAULTS)]
            yield [_TITLES.get(cell["kind"], cell["kind"]), str(cell["new_tokens"]), *told[0], *told[1]]


def _evaluated(cell: Any, way: LlamaWay) -> str:
    return told_tokens(cell, way.name, "computed")


_TURN_HEADS = ("turn", "median", "range", "kept", "moved", "computed")
TURNS_AT_DEFAULTS = ResultTable(
    _TURN_HEADS,
    partial(_turns, name_of=at_defaults),
    "Acmserve and stock at vLLM's own defaults: the model's own precision, and compiled.",
)
TURNS = ResultTable(_TURN_HEADS, partial(_turns, name_of=str), "Both in float32, and eager.")
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
LLAMA_TABLE = ResultTable(
    (
        "edit",
        "new tokens",
        "llama.cpp at its best",
        "tokens it evaluates",
        "at its own defaults",
        "tokens it evaluates",
    ),
    _llama_ways,
    "llama.cpp in two ways, both with its store in host memory.",
)
