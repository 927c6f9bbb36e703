"""What the runs of `bench budget` cost in money, at prices of tokens that are written, read and sampled. Pure.

Each prompt is paid token by token: what stood in the cache at the price of reading, what was computed at that of
writing. A summary pays for its own prompt and for what it writes. What the agent writes is the same in every run, so it
makes a saving smaller, as a share of the whole bill. Costs are told without it and with it, where a result tells how
much that is. Counts are those of the results, and other prices need no other run.

CWL's paper (arXiv 2606.11213) tells 20 to 70 % less than its baseline, and 23 % less than compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.harness.markdown_text import count

BASELINE, COMPACTION = "uncapped", "compaction"


def cost_of(run: Mapping[str, Any], prices: PriceRatios, num_written: int = 0) -> float:
    """What one run cost, in the money of the prices. `num_written` are tokens of what the agent writes."""
    computed = run["total_computed_tokens"] + run["summary_computed_tokens"]
    prompts = run["total_prompt_tokens"] + run["summary_prompt_tokens"]
    return prices.cost_of(computed, prompts - computed, run["summary_completion_tokens"] + num_written)


def written_tokens(report: Report) -> int | None:
    """Tokens that the agent writes in every run. Older results do not tell them."""
    found: int | None = report.get("trace", {}).get("written_tokens")
    return found


def _costs(report: Report) -> Iterator[list[str]]:
    prices, written = PriceRatios(**report.get("prices", {})), written_tokens(report)
    inputs, bills = ({run["name"]: cost_of(run, prices, num) for run in report["runs"]} for num in (0, written or 0))
    for run in report["runs"]:
        name, of_bill = run["name"], ["not told"] * 2 if written is None else _beside(bills, run["name"])
        cost = f"{inputs[name]:.4f}"
        yield [run["title"], count(run["total_prompt_tokens"]), cost, *_beside(inputs, name), *of_bill]


def _beside(costs: Mapping[str, float], name: str) -> list[str]:
    return [_less(costs[name], costs.get(other)) if name != other else "" for other in (BASELINE, COMPACTION)]


def _less(cost: float, other: float | None) -> str:
    return "" if other is None else f"{100 * (cost / other - 1):+.0f} %"


COSTS = ResultTable(
    (
        *("run", "tokens of all prompts", "cost", "beside no budget", "beside compaction"),
        *("with what the agent writes, beside no budget", "the same beside compaction"),
    ),
    _costs,
    "Cost of the input, in the price of a million plain input tokens. A computed token costs 1.25 of that price, a "
    "cached one 0.1, and one of a summary 5, where no other prices are given. What the agent writes costs as much as a "
    "summary, and counts in the last two columns alone.",
)
