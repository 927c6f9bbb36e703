"""What interleaved rounds with precompute and without come to, held against the bars of the project. Pure: JSON in.

    ordinary turns   on / off of the same turn: median over all rounds          at most 1.03, by the interval's end
                     sum of on / sum of off                                     the same
    all waiting      sum of on / sum of off, every turn of every round          at most 0.80
    edited turns     on / append line of off, behind a pause of a second        90th percentile at most 1.5

`waiting_bound` is what all waiting would be if each edited turn of off took what an append of its new tokens takes. New
text is computed in any case, so precompute alone hardly comes below it.

An edited turn of `on` is held against what an append costs without precompute. A line through its own appends would
forgive precompute that makes all turns slow. The pause is the one in front of the very turn: the later steps of a loop
have none.

Decision: ordinary turns have two bars. A median does not see that one turn in three waits for a chunk of precompute.

Decision: the interval of all waiting draws single turns, on and off together. An eviction that comes two turns early is
a loss and a gain there, so the interval is rather too wide than too narrow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval, nearest_rank
from acmserve.bench.precompute.runs import EXACT, PREDICT
from acmserve.bench.precompute.turn_statistics import Turns, append_line, new_tokens, on_line, ordinary_pairs

MOST_ORDINARY = 1.03
MOST_WAITING = 0.8
MOST_APPENDS = 1.5
LEAST_PAUSE_SECONDS = 1.0
ALL_WAITING = "all waiting, on over off"
"""What the bar of all turns together is called."""
_P90 = 0.9
_NUM_SAMPLES = 2_000

Pair = tuple[float, float]
"""Seconds with precompute and without."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One number and what it may be at most. `value` is None where no turn is about it, and then it is not met."""

    what: str
    value: float | None
    interval: Sequence[float] | None
    bar: float
    num_turns: int
    is_met: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        value = None if self.value is None else round(self.value, 4)
        return {
            "what": self.what,
            "value": value,
            "interval": self.interval,
            "bar": self.bar,
            "num_turns": self.num_turns,
            "is_met": self.is_met,
        }


def judge_rounds(rounds: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """The bars, of all rounds together."""
    both = [(one["runs"][PREDICT]["turns"], one["runs"][EXACT]["turns"]) for one in rounds]
    over = edited_over_appends(both)
    return [*_ordinary(both), _waiting(both), _edited([ratio for ratio, pause in over if pause >= LEAST_PAUSE_SECONDS])]


def waiting_bound(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """All waiting over that of off, if each edited turn of off were an append. None without a line of appends."""
    turns = [one["runs"][EXACT]["turns"] for one in rounds]
    line = append_line(turns)
    if line is None:
        return None
    saved = sum(
        off["seconds"][n] - on_line(line, max(0, new_tokens(off, n)))
        for off in turns
        for n in range(1, len(off["seconds"]))
        if off["evicted_tokens"][n]
    )
    total = sum(sum(off["seconds"]) for off in turns)
    return round((total - saved) / total, 4)


def edited_over_appends(both: Sequence[tuple[Turns, Turns]]) -> list[tuple[float, float]]:
    """Of each edited turn of `on`: its seconds in appends of `off`, and the pause in front of it. [] without a line."""
    line = append_line([off for _, off in both])
    if line is None:
        return []
    return [
        (on["seconds"][n] / on_line(line, max(0, new_tokens(on, n))), on["pause_seconds"][n])
        for on, _ in both
        for n in range(1, len(on["seconds"]))
        if on["evicted_tokens"][n]
    ]


def _ordinary(both: Sequence[tuple[Turns, Turns]]) -> list[Bar]:
    pairs = [pair for on, off in both for pair in ordinary_pairs(on, off)]
    return [
        _bar("ordinary turns, on over off, median", pairs, _median_over, MOST_ORDINARY, _end),
        _bar("ordinary turns, on over off, all together", pairs, _over, MOST_ORDINARY, _end),
    ]


def _waiting(both: Sequence[tuple[Turns, Turns]]) -> Bar:
    pairs = [pair for on, off in both for pair in zip(on["seconds"], off["seconds"], strict=True)]
    return _bar(ALL_WAITING, pairs, _over, MOST_WAITING, _seen)


def _edited(over: Sequence[float]) -> Bar:
    what = f"edited turns behind a pause of {LEAST_PAUSE_SECONDS:g} s, in appends, 90th percentile"
    return _bar(what, over, _p90, MOST_APPENDS, _seen)


def _bar(
    what: str,
    values: Sequence[Any],
    statistic: Callable[[Sequence[Any]], float],
    bar: float,
    judged: Callable[[float, Sequence[float]], float],
) -> Bar:
    """`judged` says what is held against the bar: the value, or an end of its interval."""
    if not values:
        return Bar(what, None, None, bar, 0, False)
    value, ends = statistic(values), bootstrap_interval(values, statistic, _NUM_SAMPLES)
    return Bar(what, value, ends, bar, len(values), judged(value, ends) <= bar)


def _seen(value: float, _: Sequence[float]) -> float:
    return value


def _end(_: float, ends: Sequence[float]) -> float:
    return ends[1]


def _median_over(pairs: Sequence[Pair]) -> float:
    return statistics.median(on / off for on, off in pairs)


def _over(pairs: Sequence[Pair]) -> float:
    return sum(on for on, _ in pairs) / sum(off for _, off in pairs)


def _p90(values: Sequence[float]) -> float:
    return nearest_rank(sorted(values), _P90)
