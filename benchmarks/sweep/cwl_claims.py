"""What CWL's paper claims of costs, beside what our conversations have: reproduced or refuted. Pure.

    20 to 70 % less than its baseline, 23 % less than compaction      Beyond Compaction, arXiv 2606.11213

Costs are those of the input under `exact`, and of written summaries. What the agent writes is the same in every run. A
claim is reproduced where the saving is at least the smallest that the paper tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acmserve.bench.agent.result_table import Report
from acmserve.bench.budget.costs import BASELINE, COMPACTION, cost_of
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.harness.markdown_text import share
from acmserve.bench.sweep.computed import EXACT
from acmserve.bench.sweep.table import cost_of as swept_cost
from acmserve.bench.sweep.table import whole_session

PAPER = "CWL's paper tells 20 to 70 % less cost than its baseline, and 23 % less than compaction."
OUTPUT = "What the agent writes is in no cost, so shares of a whole bill are smaller."
_LEAST_BELOW_BASELINE, _BELOW_COMPACTION = 0.20, 0.23


@dataclass(frozen=True, slots=True)
class CwlCost:
    """What CWL costs in one run, beside no budget and beside compaction under the same budget."""

    name: str
    cost: float
    baseline: float
    compaction: float

    @property
    def is_below_baseline(self) -> bool:
        return round(1 - self.cost / self.baseline, 4) >= _LEAST_BELOW_BASELINE

    @property
    def is_below_compaction(self) -> bool:
        return round(1 - self.cost / self.compaction, 4) >= _BELOW_COMPACTION

    @property
    def below_baseline(self) -> str:
        """`79 % less`."""
        return beside(self.cost, self.baseline)

    @property
    def below_compaction(self) -> str:
        """`27 % less`."""
        return beside(self.cost, self.compaction)


def beside(cost: float, other: float) -> str:
    """`27 % less`, or `69 % more`."""
    return f"{share(abs(cost / other - 1))} {'more' if cost > other else 'less'}"


def verdict(found: Mapping[str, bool]) -> str:
    """`reproduced`, `refuted`, or which is which: `reproduced in batches, refuted one at a time`."""
    names = {is_so: [name for name, one in found.items() if one is is_so] for is_so in (True, False)}
    told = [f"{word} {' and '.join(names[so])}" for so, word in ((True, "reproduced"), (False, "refuted"))]
    return ", ".join(told) if all(names.values()) else "reproduced" if names[True] else "refuted"


def budget_costs(report: Report, *names: str) -> list[CwlCost]:
    """Of runs of `bench budget`."""
    prices = PriceRatios(**report["prices"])
    costs = {run["name"]: cost_of(run, prices) for run in report["runs"]}
    return [CwlCost(name, costs[name], costs[BASELINE], costs[COMPACTION]) for name in names]


def sweep_costs(report: Report) -> list[CwlCost]:
    """Of `bench sweep`, one for each budget."""
    prices = PriceRatios(**report["prices"])
    costs = {(row["policy"], row["max_tokens"]): swept_cost(row, EXACT, prices) for row in report["rows"]}
    whole = swept_cost(whole_session(report), EXACT, prices)
    return [
        CwlCost(f"at {most:,}", cost, whole, costs["compaction", most])
        for (policy, most), cost in costs.items()
        if policy == "cwl"
    ]


def prices_told(report: Report) -> str:
    """At which prices."""
    prices = PriceRatios(**report["prices"])
    return (
        f"A computed token costs {prices.write:g} input prices, a cached one {prices.read:g}, "
        f"one of a summary {prices.output:g}."
    )


def range_told(costs: Sequence[CwlCost]) -> str:
    """Beside compaction, from the least to the most: `10 % less to 41 % more`."""
    found = sorted(costs, key=lambda one: one.cost / one.compaction)
    low, high = found[0].below_compaction, found[-1].below_compaction
    return f"{low.partition(' %')[0]} to {high}" if low.split()[-1] == high.split()[-1] else f"{low} to {high}"
