"""What `bench scale` has to reach, held against what it measured. Pure: JSON in.

    each length up to 32K      a fold / the append behind it, with reuse                     at most 1.1
    the longest of them        stock / reuse, first token after a fold, at vLLM's defaults   at least 20
    64 holes / 1 hole          as many new tokens, with reuse and with auto, at defaults     at most 1.1

The end of a 95 % interval that is nearer to the bar is judged, or beyond it, not what was seen. Ratios of a fold to the
append behind it are drawn one by one, all others by repetition. A cell that was left out misses its bar.

Decision: "does not grow" is a tenth at most, as for a fold beside an append. A bar that any noise meets would prove
nothing, and one of 1.0 is missed by half of all runs that do not grow.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval
from acmserve.bench.agent.result_table import Report
from acmserve.bench.edit.times import AT_DEFAULTS, AUTO, DEFAULTS, REUSE, by_repetition

MOST_APPENDS = 1.1
LONGEST_JUDGED = 32_768
LEAST_SOONER = 20.0
MOST_GROWTH = 1.1
_NUM_SAMPLES = 2_000
_Pair = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class ScaleBar:
    """One ratio, and what it may be at most, or at least. `value` None: there is no such cell, and it is not met."""

    what: str
    value: float | None
    interval: Sequence[float] | None
    bar: float
    is_most: bool
    is_met: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        value = None if self.value is None else round(self.value, 4)
        told = {"what": self.what, "value": value, "interval": self.interval, "bar": self.bar}
        return told | {"is_most": self.is_most, "is_met": self.is_met}


def judge_scale(report: Report) -> list[ScaleBar]:
    """The bars of a report with times. Its `contexts` are all lengths that were to be measured."""
    lengths = [length for length in sorted(report["contexts"]) if length <= LONGEST_JUDGED]
    cells = {cell["context_tokens"]: cell for cell in by_length(report) if "medians" in cell}
    bars = [_appends(length, cells.get(length, {}).get(DEFAULTS), "vLLM's defaults") for length in lengths]
    bars += [_appends(length, cell, "float32, eager") for length, cell in cells.items() if "appends" in cell]
    return [*bars, *(_sooner(length, cells.get(length)) for length in lengths[-1:]), *_growth(report)]


def by_length(report: Report) -> list[Any]:
    """The cells that differ in length alone, shortest first."""
    cells = [cell for cell in report["cells"] if cell["num_holes"] == 1 and cell["front_share"] == 0.1]
    least = min((cell["new_tokens"] for cell in cells), default=0)
    return sorted((cell for cell in cells if cell["new_tokens"] == least), key=lambda cell: int(cell["context_tokens"]))


def by_holes(report: Report) -> list[Any]:
    """The cells that differ in the number of holes, those with one first.

    In files of older runs the one with one hole has fewer new tokens than the others.
    """
    others = [cell for cell in report["cells"] if cell["num_holes"] != 1]
    lengths = {cell["context_tokens"] for cell in others}
    ones = [cell for cell in report["cells"] if cell["num_holes"] == 1 and cell["front_share"] == 0.1]
    padded = [cell for cell in ones if cell["new_tokens"] in {other["new_tokens"] for other in others}]
    first = [cell for cell in padded or by_length(report) if cell["context_tokens"] in lengths]
    return sorted([*first, *others], key=lambda cell: int(cell["num_holes"]))


def _appends(length: int, found: Mapping[str, Any] | None, where: str) -> ScaleBar:
    what = f"fold of {length:,} tokens, in appends, {where}"
    if found is None:
        return ScaleBar(what, None, None, MOST_APPENDS, is_most=True, is_met=False)
    return _at_most(what, found["appends"], found["appends_interval"], MOST_APPENDS)


def _sooner(length: int, cell: Report | None) -> ScaleBar:
    what = f"stock over `reuse` at {length:,} tokens, both at vLLM's defaults"
    pairs = _pairs(cell, DEFAULTS, cell, REUSE + AT_DEFAULTS)
    if not pairs:
        return ScaleBar(what, None, None, LEAST_SOONER, is_most=False, is_met=False)
    ends = bootstrap_interval(pairs, _over, _NUM_SAMPLES)
    return ScaleBar(what, _over(pairs), ends, LEAST_SOONER, is_most=False, is_met=ends[0] >= LEAST_SOONER)


def _growth(report: Report) -> Iterator[ScaleBar]:
    """Nothing where no number of holes was to be measured."""
    cells = {cell["num_holes"]: cell for cell in by_holes(report)}
    most = max(report["numbers_of_holes"], default=1)
    for fidelity in (REUSE, AUTO) if most > 1 else ():
        what = f"{most} holes over 1, as many new tokens, `{fidelity}`, vLLM's defaults"
        one, many = cells.get(1), cells.get(most)
        is_alike = one is not None and many is not None and one["new_tokens"] == many["new_tokens"]
        pairs = _pairs(many, fidelity + AT_DEFAULTS, one, fidelity + AT_DEFAULTS) if is_alike else []
        if pairs:
            yield _at_most(what, _over(pairs), bootstrap_interval(pairs, _over, _NUM_SAMPLES), MOST_GROWTH)
        else:
            yield ScaleBar(what, None, None, MOST_GROWTH, is_most=True, is_met=False)


def _at_most(what: str, value: float, ends: Sequence[float], bar: float) -> ScaleBar:
    return ScaleBar(what, value, ends, bar, is_most=True, is_met=ends[1] <= bar)


def _pairs(one: Report | None, series: str, other: Report | None, beside: str) -> list[_Pair]:
    """Times of two series in each repetition. [] where one of them is missing."""
    sides = [
        by_repetition(cell["seconds_to_first_token"][name], cell["num_repetitions"])
        for cell, name in ((one, series), (other, beside))
        if cell is not None and name in cell.get("medians", ())
    ]
    return list(zip(*sides, strict=False)) if len(sides) == 2 else []


def _over(pairs: Sequence[_Pair]) -> float:
    """The median of one side over that of the other."""
    one, other = ([seconds for part in side for seconds in part] for side in zip(*pairs, strict=True))
    return statistics.median(one) / statistics.median(other)
