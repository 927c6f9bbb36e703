"""The report of `bench trace`: JSON-ready rows, and the tables that people read. No numbers where the gate is red."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.markdown_text import count, interval, ratio, seconds
from acmserve.bench.harness.options import as_gate
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.trace.half_precision import check_distances, distance_notes, nats_from_stock
from acmserve.bench.trace.peer_servers import (
    AUTO,
    EXACT,
    LLAMA_CPP,
    LLAMA_DEFAULTS,
    NO_PREFIX,
    REUSE,
    STOCK,
    STOCK_DEFAULTS,
)
from acmserve.bench.trace.repeats import add_up
from acmserve.bench.trace.score import (
    GOODPUT_LIMITS,
    NOT_COMPARED,
    PERCENTILES,
    ReplayCell,
    as_row,
    check_cell,
    compare_with_stock,
    prompt_notes,
    without_times,
)
from acmserve.bench.trace.witness import check_witnesses, compare_witnesses

SERVER_TITLES = {
    REUSE: "acmserve, `reuse`",
    AUTO: "acmserve, `auto`",
    EXACT: "acmserve, `exact`",
    STOCK: "vLLM with prefix caching",
    STOCK_DEFAULTS: "vLLM at its own defaults",
    LLAMA_CPP: "llama.cpp with `--cache-reuse`",
    LLAMA_DEFAULTS: "llama.cpp at its own defaults",
    NO_PREFIX: "vLLM with its cache switched off",
}
POLICY_TITLES = {
    "none": "the whole conversation",
    "clear_tool_uses": "old results cleared",
    "cwl": "CWL in batches",
    "recency": "oldest first, in batches",
    "recency@1": "oldest first, whenever it is full",
    "compaction": "a summary by the client",
}
_COUNTED = (STOCK, EXACT, AUTO, REUSE)
"""Files of older runs have no `auto`, and no count of it."""
REPEAT_HEADS = ("tool calls", "repeats, result still shown", "re-explorations, result taken out")
REPEAT_NOTE = (
    "Tool calls that repeat an earlier one. A recording answers as it was recorded, whatever the policy took out."
)
_FORCED = "of these oldest first"
FORCED_NOTE = (
    "Where a policy takes out too little for the budget, the oldest steps leave, too. These edits are counted."
)
TOO_FEW = "{} repetitions are too few: no time of this is a result"


def as_report(cells: Sequence[ReplayCell], *, is_timed: bool = True, is_float32: bool = True) -> dict[str, Any]:
    """The gate, what is only noted, and one row for each cell. What is not timed has a model of one layer.

    In 16 bits a stock engine is not always the same as itself. There answers that differ are noted alone, and the gate
    is one of distances (`half_precision.py`).
    """
    num_compared, differing = compare_with_stock(cells)
    failures = [failure for cell in cells for failure in check_cell(cell)]
    if is_float32:
        failures += [*differing, *check_witnesses(cells, has_layers=is_timed)]
    elif is_timed:
        failures += check_distances(cells)
    num_repetitions = min((len(cell.loads) for cell in cells), default=0)
    few = [TOO_FEW.format(num_repetitions)] if is_timed and num_repetitions < LEAST_REPETITIONS else []
    by_policy = {cell.policy: cell for cell in cells if cell.peer.name == STOCK}
    rows = [] if failures else [as_row(cell, by_policy.get(cell.policy)) for cell in cells]
    return {
        "gate": as_gate(failures),
        "answers_compared_with_stock": num_compared,
        "answers_other_than_stock": len(differing),
        "witnesses": {
            policy: {name: distance.as_dict() for name, distance in found.items()}
            for policy, found in compare_witnesses(cells).items()
        },
        "nats_from_stock": {} if is_float32 else nats_from_stock(cells),
        "repetitions": num_repetitions,
        "notes": [
            *prompt_notes(cells),
            *([] if num_compared else [NOT_COMPARED]),
            *(distance_notes(cells) if is_timed and not is_float32 else []),
            *few,
        ],
        "rows": rows if is_timed else [without_times(row) for row in rows],
    }


def _servers(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        if "turns_per_second" not in row:
            continue
        name = SERVER_TITLES.get(row["server"], row["title"])
        after = row["first_token_seconds_after_edit"]
        yield [
            POLICY_TITLES.get(row["policy"], row["policy"]),
            name,
            ratio(row["turns_per_second"]["median"]),
            count(row["computed_tokens"]),
            str(row["num_edits"]),
            str(row.get("num_forced", "")),
            _percentile(after, "p50") if after else "",
        ]


def _waits(report: Report) -> Iterator[list[str]]:
    """Files of older runs have first tokens alone."""
    for row in report["rows"]:
        if "turn_seconds" in row:
            yield [
                POLICY_TITLES.get(row["policy"], row["policy"]),
                SERVER_TITLES.get(row["server"], row["title"]),
                _beside(row.get("rate_beside_stock")),
                *(_percentile(row["first_token_seconds"], f"p{percent}") for percent in PERCENTILES),
                seconds(statistics.median(row["waited_seconds"])),
                _beside(row.get("waited_beside_stock")),
                _beside(row.get("edited_beside_stock")),
                seconds(row["turn_seconds"]["p50"]),
                seconds(row["turn_seconds"]["p90"]),
                *(ratio(found) for found in row["goodput"].values()),
            ]


def _counts(report: Report) -> Iterator[list[str]]:
    """A line for each policy: all servers have the same prompts."""
    rows = _untimed(report)
    for policy in dict.fromkeys(policy for policy, _ in rows):
        turns = [(server, one) for (name, server), row in rows.items() if name == policy for one in row["turns"]]
        num_turns, num_edits, *computed = _told(turns)
        num_forced = next(row.get("num_forced", "") for (name, _), row in rows.items() if name == policy)
        yield [POLICY_TITLES.get(policy, policy), num_turns, num_edits, str(num_forced), *computed]


def _sessions(report: Report) -> Iterator[list[str]]:
    """A line for each conversation, over all policies that edit."""
    rows = _untimed(report)
    found = [(server, one) for (_, server), row in rows.items() for one in row["turns"]]
    for name in dict.fromkeys(one["session"] for _, one in found):
        turns = [(server, one) for server, one in found if one["session"] == name]
        longest = max(max(one["prompt_tokens"]) for _, one in turns)
        edited = [(server, one) for server, one in turns if one["max_tokens"]]
        if edited:
            yield [_read_name(name), count(longest), count(edited[0][1]["max_tokens"]), *_told(edited)]


def _percentile(found: Report, name: str) -> str:
    """With its interval. Files of older runs have none."""
    return f"{seconds(found[name])}{interval(found.get('intervals', {}).get(name), digits=1)}"


def _beside(found: Any) -> str:
    return "" if found is None else f"{ratio(found['ratio'])}{interval(found['interval'])}"


def _read_name(name: str) -> str:
    """What a trace is about: its file's name without underscores."""
    return " ".join(name.removeprefix("task_").replace("_", " ").split())


def _untimed(report: Report) -> dict[tuple[str, str], Any]:
    """Rows by policy and server, where nothing was timed."""
    return {(row["policy"], row["server"]): row for row in report["rows"] if "turns_per_second" not in row}


def _told(turns: Sequence[tuple[str, Any]]) -> list[str]:
    """Turns and edits of one server, for all have the same, and what each computed."""
    one = [found for server, found in turns if server == turns[0][0]]
    sums = {server: 0 for server, _ in turns}
    for server, found in turns:
        sums[server] += sum(found["computed_tokens"])
    num_turns, num_edits = (sum(map(size, (found["is_edited"] for found in one))) for size in (len, sum))
    return [str(num_turns), str(num_edits), *(count(sums.get(server)) for server in _COUNTED)]


def _repeats(report: Report) -> Iterator[list[str]]:
    """A line for each policy: all servers have the same prompts. Files of older runs have no such counts."""
    for policy, sessions in {row["policy"]: row["turns"] for row in report["rows"]}.items():
        if all("num_calls" in one for one in sessions):
            counts = (sum(one[name] for one in sessions) for name in add_up(()))
            yield [POLICY_TITLES.get(policy, policy), *map(str, counts)]


def _notes(report: Report) -> Iterator[list[str]]:
    yield from ([note] for note in report["notes"])
    yield from ([f"left out: {server}"] for server in report.get("left_out", ()))
    if num_compared := report.get("answers_compared_with_stock"):
        num_same = num_compared - report.get("answers_other_than_stock", 0)
        yield [f"{num_same} of {num_compared} answers of exact are stock's, token for token"]


SERVERS = ResultTable(
    (
        "policy of the client",
        "server",
        "turns a second",
        "tokens computed",
        "edits",
        _FORCED,
        "first token after an edit, median",
    ),
    _servers,
    FORCED_NOTE,
)
WAITS = ResultTable(
    (
        "policy of the client",
        "server",
        "turns a second, beside stock",
        "first token, p50",
        "p90",
        "p99",
        "all waiting",
        "all waiting, beside stock",
        "first tokens after an edit, beside stock",
        "whole turn, p50",
        "p90",
        *(f"turns a second within {limit:g} s" for limit in GOODPUT_LIMITS),
    ),
    _waits,
)
NOTES = ResultTable(("notes",), _notes)
_COMPUTED_HEADS = tuple(f"computed by {SERVER_TITLES[server]}" for server in _COUNTED)
_COUNT_HEADS = ("turns", "edits", *_COMPUTED_HEADS)
REPEATS = ResultTable(
    ("policy of the client", *REPEAT_HEADS),
    _repeats,
    REPEAT_NOTE,
)
COUNTS = ResultTable(("policy of the client", "turns", "edits", _FORCED, *_COMPUTED_HEADS), _counts, FORCED_NOTE)
SESSIONS = ResultTable(
    ("conversation", "longest prompt", "budget", *_COUNT_HEADS), _sessions, "By conversation, all policies that edit."
)
