"""What CWL's paper claims of costs, beside what our conversations have: reproduced or refuted. Pure.

    20 to 70 % less than its baseline, 23 % less than compaction      Beyond Compaction, arXiv 2606.11213

Costs are those of the input under `exact`, and of written summaries. What the agent writes is the same in every run, so
it makes a saving of the whole bill smaller. The paper tells its inference cost, so both are told, where a result knows
what was written. A claim is reproduced where the saving is at least the smallest that the paper tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from acmserve.bench.agent.result_table import Report
from acmserve.bench.budget.costs import BASELINE, COMPACTION, cost_of, written_tokens
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.harness.markdown_text import listed, share
from acmserve.bench.sweep.computed import EXACT
from acmserve.bench.sweep.table import cost_of as swept_cost
from acmserve.bench.sweep.table import knows_answers, summary_size, whole_session
from acmserve.bench.trace.compaction import SUMMARY_TOKENS

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


def budget_costs(report: Report, *names: str, with_answers: bool = False) -> list[CwlCost]:
    """Of runs of `bench budget`. None with answers where the result does not tell what the agent writes."""
    prices, written = PriceRatios(**report["prices"]), written_tokens(report)
    if with_answers and written is None:
        return []
    num_written = (written or 0) if with_answers else 0
    costs = {run["name"]: cost_of(run, prices, num_written) for run in report["runs"]}
    return [CwlCost(name, costs[name], costs[BASELINE], costs[COMPACTION]) for name in names]


def budget_claims(report: Report) -> str:
    """What the paper tells, beside the runs of `bench budget`."""
    names = {"cwl-batched": "in batches", "cwl-single": "one at a time"}
    costs, bills = (
        [replace(one, name=names[one.name]) for one in budget_costs(report, *names, with_answers=with_answers)]
        for with_answers in (False, True)
    )
    (recency,) = budget_costs(report, "recency")
    return (
        f"{PAPER} Under `exact` CWL in batches costs {costs[0].below_baseline} than no budget here, and one at a time "
        f"{costs[1].below_baseline}: {verdict({one.name: one.is_below_baseline for one in costs})}. "
        f"Beside compaction it costs {compaction_told(costs)}. "
        f"Oldest first costs {recency.below_compaction} than compaction. {with_answers_told(bills)}"
    )


def sweep_costs(report: Report, size: int = SUMMARY_TOKENS, *, with_answers: bool = False) -> list[CwlCost]:
    """Of `bench sweep`, one for each budget with summaries of this size. None with answers where none are told."""
    if with_answers and not knows_answers(report):
        return []
    prices = PriceRatios(**report["prices"])
    costs = {
        (row["policy"], row["max_tokens"]): swept_cost(row, EXACT, prices, with_answers=with_answers)
        for row in report["rows"]
        if row["policy"] != COMPACTION or summary_size(row) == size
    }
    whole = swept_cost(whole_session(report), EXACT, prices, with_answers=with_answers)
    return [
        CwlCost(f"at {most:,}", cost, whole, costs[COMPACTION, most])
        for (policy, most), cost in costs.items()
        if policy == "cwl" and (COMPACTION, most) in costs
    ]


def summary_sizes(report: Report) -> list[int]:
    """Of `bench sweep`, in tokens, from small to large."""
    return sorted({summary_size(row) for row in report["rows"]} - {0})


def with_answers_told(costs: Sequence[CwlCost], size: int | None = None) -> str:
    """The claims beside whole bills. That they are not known, where there are no costs with answers.

    `size` names the summaries, in tokens, where a result has several sizes.
    """
    if not costs:
        return OUTPUT
    return (
        f"With its answers it costs {baseline_told(costs)}. "
        f"Beside {'compaction' if size is None else f'a summary of {size:,} tokens'} it then costs "
        f"{compaction_told(costs)}."
    )


def baseline_told(costs: Sequence[CwlCost]) -> str:
    """`49 % less and 19 % less than no budget: reproduced in batches, refuted one at a time`."""
    found = {one.name: one.is_below_baseline for one in costs}
    return f"{listed([one.below_baseline for one in costs])} than no budget: {verdict(found)}"


def compaction_told(costs: Sequence[CwlCost]) -> str:
    """`13 % less and 40 % more: refuted`."""
    found = {one.name: one.is_below_compaction for one in costs}
    return f"{listed([one.below_compaction for one in costs])}: {verdict(found)}"


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
