"""What the runs of `bench budget` cost in money, at prices of tokens that are written, read and sampled. Pure.

Each prompt is paid token by token: what stood in the cache at the price of reading, what was computed at that of
writing. A summary pays for its own prompt and for what it writes. What the agent writes is the same in every run, so it
is left out. Counts are those of the results, and other prices need no other run.

CWL's paper (arXiv 2606.11213) tells 20 to 70 % less than its baseline, and 23 % less than compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.harness.markdown_text import count

BASELINE, COMPACTION = "uncapped", "compaction"


def cost_of(run: Mapping[str, Any], prices: PriceRatios) -> float:
    """What one run cost, in the money of the prices."""
    computed = run["total_computed_tokens"] + run["summary_computed_tokens"]
    prompts = run["total_prompt_tokens"] + run["summary_prompt_tokens"]
    return prices.cost_of(computed, prompts - computed, run["summary_completion_tokens"])


def _costs(report: Report) -> Iterator[list[str]]:
    prices = PriceRatios(**report.get("prices", {}))
    costs = {run["name"]: cost_of(run, prices) for run in report["runs"]}
    for run in report["runs"]:
        cost = costs[run["name"]]
        beside = [_less(cost, costs.get(name)) if run["name"] != name else "" for name in (BASELINE, COMPACTION)]
        yield [run["title"], count(run["total_prompt_tokens"]), f"{cost:.4f}", *beside]


def _less(cost: float, other: float | None) -> str:
    return "" if other is None else f"{100 * (cost / other - 1):+.0f} %"


COSTS = ResultTable(
    ("run", "tokens of all prompts", "cost", "beside no budget", "beside compaction"),
    _costs,
    "Cost of the input, in the price of a million plain input tokens. A computed token costs 1.25 of that price, a "
    "cached one 0.1, and one of a summary 5, where no other prices are given. What the agent writes is left out.",
)
