"""The tables of `bench sweep`: tokens and cost by budget and policy, and the calls that repeat an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.harness.markdown_text import count, ratio
from acmserve.bench.sweep.computed import EXACT, REUSE, STOCK
from acmserve.bench.trace.prompts import NO_POLICY
from acmserve.bench.trace.repeats import add_up
from acmserve.bench.trace.table import POLICY_TITLES, REPEAT_HEADS, REPEAT_NOTE, SERVER_TITLES

_SERVERS = (STOCK, EXACT, REUSE)


def whole_session(report: Report) -> Mapping[str, Any]:
    """The row of one session without a budget."""
    return next(row for row in report["rows"] if row["policy"] == NO_POLICY and row["num_sessions"] == 1)


def cost_of(row: Mapping[str, Any], server: str, prices: PriceRatios) -> float:
    """What the prompts of a row cost on a server, with the summaries that are written."""
    computed = row[f"{server}_tokens"]
    return prices.cost_of(computed, row["prompt_tokens"] - computed, row["summary_tokens"])


def _named(row: Mapping[str, Any]) -> list[str]:
    title = POLICY_TITLES[row["policy"]] if row["num_sessions"] == 1 else "a session for each task"
    return [count(row["max_tokens"]) or "none", title]


def _tokens(report: Report) -> Iterator[list[str]]:
    prices = PriceRatios(**report["prices"])
    for row in report["rows"]:
        costs = [cost_of(row, name, prices) / cost_of(whole_session(report), name, prices) for name in (EXACT, REUSE)]
        sizes = [str(row["num_prompts"]), str(row["num_edits"]), count(row["max_prompt_tokens"])]
        yield [*_named(row), *sizes, *(count(row[f"{name}_tokens"]) for name in _SERVERS), *map(ratio, costs)]


def _repeats(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        yield [*_named(row), *(str(row[name]) for name in add_up(()))]


BUDGET_TOKENS = ResultTable(
    (
        *("budget", "policy of the client", "prompts", "edits", "longest prompt"),
        *(f"computed by {SERVER_TITLES[server]}" for server in _SERVERS),
        *("cost under `exact`, beside no budget", "cost under `reuse`, beside no budget"),
    ),
    _tokens,
    "Planned tokens. Costs are those of the prompts and of summaries, at the prices of vendors. What the agent writes "
    "is left out. One session without a budget is 1.",
)
BUDGET_REPEATS = ResultTable(
    ("budget", "policy of the client", *REPEAT_HEADS),
    _repeats,
    REPEAT_NOTE,
)
