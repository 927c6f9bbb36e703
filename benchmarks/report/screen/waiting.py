"""The number of precompute on the first screen: all waiting, and ordinary turns beside it, of each policy that was run.

    precompute-paired, precompute-paired-clear    CWL and clearing
    precompute-paired-thoughts                    dropped reasoning, told once it was recorded

Decision: a bar without an interval is not measured, since one round decides nothing. What is missed stays missed where
another bar was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.markdown_text import NOT_MEASURED, interval, ratio
from acmserve.bench.precompute.bars import ALL_WAITING, MOST_ORDINARY, MOST_WAITING
from acmserve.bench.report.page_section import Reports
from acmserve.bench.report.sections.missed import DROPPED, PAIRED

_POLICIES = {PAIRED[0]: "under CWL", PAIRED[1]: "with clearing", DROPPED: "where reasoning is dropped"}


def over_bars(reports: Reports) -> float | None:
    """The share of its bar that the worst number takes. None where one was not measured, and none is missed."""
    found = [*_over_waiting(reports).values(), *_over_ordinary(reports)]
    known = [one for one in found if one is not None]
    return max(known) if known and (len(known) == len(found) or max(known) > 1) else None


def told(reports: Reports) -> str:
    """All waiting of each policy."""
    return ", ".join(f"{_changed(_waiting(reports[name]))} {_POLICIES[name]}" for name in _recorded(reports))


def beside(reports: Reports) -> str:
    """Ordinary turns by both bars, and how far all waiting could come down."""
    median, together = (", ".join(map(_times, bars)) for bars in _ordinary(reports))
    bounds = [reports[name]["waiting_bound"] for name in _recorded(reports)]
    appends = ", ".join(NOT_MEASURED if bound is None else _change(bound) for bound in bounds)
    return (
        f"Ordinary turns by the median {median} times, together {together}. Were each edited turn an append, {appends}"
    )


def bar_told() -> str:
    """What all waiting and ordinary turns may be."""
    return f"{_change(MOST_WAITING)}, others {MOST_ORDINARY}"


def missed(reports: Reports) -> str:
    """Why, for each bar that is missed."""
    over = {name: found for name, found in _over_waiting(reports).items() if found is not None and found > 1}
    reasons = [
        "edited turns take hardly more than appends under CWL. With clearing too few of their tokens were ready."
    ] * any(name in over for name in PAIRED)
    if DROPPED in over:
        reasons.append(f"{_POLICIES[DROPPED]} all waiting is {ratio(MOST_WAITING * over[DROPPED])} times.")
    slower = max((found for found in _over_ordinary(reports) if found is not None), default=0.0)
    reasons += [f"ordinary turns may take {ratio(MOST_ORDINARY * slower)} times, by the interval's end."] * (slower > 1)
    return " And ".join(reasons)


def _recorded(reports: Reports) -> list[str]:
    return [name for name in _POLICIES if name in reports]


def _waiting(report: Report) -> Report:
    bar: Report = next(bar for bar in report["bars"] if bar["what"] == ALL_WAITING)
    return bar


def _ordinary(reports: Reports) -> list[list[Report]]:
    """Bars of the other turns, of each policy: by the median, then all together."""
    return [[reports[name]["bars"][number] for name in _recorded(reports)] for number in range(2)]


def _over_waiting(reports: Reports) -> dict[str, float | None]:
    """By what was seen, as the bar has it."""
    bars = {name: _waiting(reports[name]) for name in _recorded(reports)}
    return {name: bar["value"] / MOST_WAITING if bar["interval"] else None for name, bar in bars.items()}


def _over_ordinary(reports: Reports) -> Iterator[float | None]:
    """By the interval's end, as the bars have it."""
    for bars in _ordinary(reports):
        yield from (bar["interval"][1] / MOST_ORDINARY if bar["interval"] else None for bar in bars)


def _changed(bar: Report) -> str:
    ends = f" [{', '.join(map(_change, bar['interval']))}]" if bar["interval"] else ""
    return f"{_change(bar['value'])}{ends}"


def _times(bar: Report) -> str:
    return NOT_MEASURED if bar["value"] is None else f"{ratio(bar['value'])}{interval(bar['interval'])}"


def _change(over: float) -> str:
    return f"{100 * (over - 1):+.0f} %"
