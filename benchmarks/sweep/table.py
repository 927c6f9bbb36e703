"""The tables of `bench sweep`: tokens and cost by budget and policy, and the calls that repeat an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.harness.markdown_text import count, ratio
from acmserve.bench.sweep.computed import EXACT, REUSE, STOCK
from acmserve.bench.trace.compaction import SUMMARY_TOKENS
from acmserve.bench.trace.prompts import COMPACTION, NO_POLICY
from acmserve.bench.trace.repeats import add_up
from acmserve.bench.trace.table import POLICY_TITLES, REPEAT_HEADS, REPEAT_NOTE, SERVER_TITLES

_SERVERS = (STOCK, EXACT, REUSE)


def whole_session(report: Report) -> Mapping[str, Any]:
    """The row of one session without a budget."""
    return next(row for row in report["rows"] if row["policy"] == NO_POLICY and row["num_sessions"] == 1)


def cost_of(row: Mapping[str, Any], server: str, prices: PriceRatios, *, with_answers: bool = False) -> float:
    """What the prompts of a row cost on a server, with the summaries that are written, or with all that is."""
    computed = row[f"{server}_tokens"]
    written = row["summary_tokens"] + (row["answer_tokens"] if with_answers else 0)
    return prices.cost_of(computed, row["prompt_tokens"] - computed, written)


def knows_answers(report: Report) -> bool:
    """Whether the rows tell what the agent writes. Those of older results do not."""
    return all("answer_tokens" in row for row in report["rows"])


def summary_size(row: Mapping[str, Any]) -> int:
    """Tokens that a summary has at most, 0 where none is written. In older results they have the first size."""
    return int(row.get("max_summary_tokens", SUMMARY_TOKENS if row["policy"] == COMPACTION else 0))


def _named(row: Mapping[str, Any]) -> list[str]:
    title = POLICY_TITLES[row["policy"]] if row["num_sessions"] == 1 else "a session for each task"
    size = f", of {summary_size(row):,} tokens" if summary_size(row) else ""
    return [count(row["max_tokens"]) or "none", title + size]


def _tokens(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        costs = [_beside(report, row, name) for name in (EXACT, REUSE)]
        with_answers = _beside(report, row, EXACT, with_answers=True) if knows_answers(report) else None
        sizes = [str(row["num_prompts"]), str(row["num_edits"]), count(row["max_prompt_tokens"])]
        yield [
            *_named(row),
            *sizes,
            *(count(row[f"{name}_tokens"]) for name in _SERVERS),
            *map(ratio, costs),
            _told(with_answers),
        ]


def _beside(report: Report, row: Mapping[str, Any], server: str, *, with_answers: bool = False) -> float:
    """Cost beside that of one session without a budget."""
    mine, whole = (
        cost_of(one, server, PriceRatios(**report["prices"]), with_answers=with_answers)
        for one in (row, whole_session(report))
    )
    return mine / whole


def _told(value: float | None) -> str:
    return "not told" if value is None else ratio(value)


def _repeats(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        yield [*_named(row), *(str(row[name]) for name in add_up(()))]


BUDGET_TOKENS = ResultTable(
    (
        *("budget", "policy of the client", "prompts", "edits", "longest prompt"),
        *(f"computed by {SERVER_TITLES[server]}" for server in _SERVERS),
        *("cost under `exact`, beside no budget", "cost under `reuse`, beside no budget"),
        "under `exact`, with what the agent writes",
    ),
    _tokens,
    "Planned tokens. Costs are those of the prompts and of summaries, at the prices of vendors, and in the last column "
    "also of what the agent writes. One session without a budget is 1.",
)
BUDGET_REPEATS = ResultTable(
    ("budget", "policy of the client", *REPEAT_HEADS),
    _repeats,
    REPEAT_NOTE,
)
