"""What interleaved rounds with precompute and without come to, held against the bars of the project. Pure: JSON in.

    ordinary turns   on / off of a turn with the same prompt: median            at most 1.03, by the interval's end
                     sum of on / sum of off                                     the same
    all waiting      sum of on / sum of off, every turn of every round          at most 0.80
    edited turns     on / append line of off, behind a pause of a second        90th percentile at most 1.5

`predict` carries out an eviction early where it is ready. From there on prompts of a round differ. That is a part of
what precompute does, so all waiting keeps such turns. `waiting_by_prompt` tells them apart. None of them is ordinary.

`waiting_bound` is what all waiting would be if each edited turn of off took what an append of its new tokens takes. New
text is computed in any case, so precompute alone hardly comes below it.

An edited turn of `on` is held against what an append costs without precompute. A line through its own appends would
forgive precompute that makes all turns slow. The pause is the one in front of the very turn: the later steps of a loop
have none.

Decision: ordinary turns have two bars. A median does not see that one turn in three waits for a chunk of precompute.

Decision: an interval is Student's, over the ratios of rounds. Turns of one round drift together, so a bootstrap of
single turns is too narrow. The 90th percentile of some ten edited turns has no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.agent.estimates import nearest_rank, student_ratio_interval
from acmserve.bench.precompute.runs import EXACT, PREDICT
from acmserve.bench.precompute.turn_statistics import (
    Turns,
    append_line,
    is_same_prompt,
    new_tokens,
    on_line,
    ordinary_pairs,
)

MOST_ORDINARY = 1.03
MOST_WAITING = 0.8
MOST_APPENDS = 1.5
LEAST_PAUSE_SECONDS = 1.0
ALL_WAITING = "all waiting, on over off"
"""What the bar of all turns together is called."""
_P90 = 0.9

Pair = tuple[float, float]
"""Seconds with precompute and without."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One number and what it may be at most. `value` is None where no turn is about it, and then it is not met.

    `interval` is None where there are fewer than two rounds, or the number is a percentile.
    """

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
    both = _both(rounds)
    over = edited_over_appends(both)
    return [*_ordinary(both), _waiting(both), _edited([ratio for ratio, pause in over if pause >= LEAST_PAUSE_SECONDS])]


def waiting_by_prompt(rounds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """All waiting, on over off, of turns with the `same` prompt on both sides and with `other` ones, JSON-ready."""
    found = {}
    for name, is_same in (("same", True), ("other", False)):
        bar = _waiting(_both(rounds), (is_same,))
        found[name] = {key: value for key, value in bar.as_dict().items() if key in ("num_turns", "value", "interval")}
    return found


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


def _both(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[Turns, Turns]]:
    """The turns with precompute and without, of each round."""
    return [(one["runs"][PREDICT]["turns"], one["runs"][EXACT]["turns"]) for one in rounds]


def _ordinary(both: Sequence[tuple[Turns, Turns]]) -> list[Bar]:
    rounds = [ordinary_pairs(on, off) for on, off in both]
    return [
        _bar("ordinary turns, on over off, median", rounds, _median_over, MOST_ORDINARY, _end),
        _bar("ordinary turns, on over off, all together", rounds, _over, MOST_ORDINARY, _end),
    ]


def _waiting(both: Sequence[tuple[Turns, Turns]], some: Collection[bool] = (True, False)) -> Bar:
    """Of all turns, or of those alone whose prompt is the same in both, or is not."""
    rounds = [
        [
            pair
            for n, pair in enumerate(zip(on["seconds"], off["seconds"], strict=True))
            if is_same_prompt(on, off, n) in some
        ]
        for on, off in both
    ]
    return _bar(ALL_WAITING, rounds, _over, MOST_WAITING, _seen)


def _edited(over: Sequence[float]) -> Bar:
    what = f"edited turns behind a pause of {LEAST_PAUSE_SECONDS:g} s, in appends, 90th percentile"
    value = nearest_rank(sorted(over), _P90) if over else None
    return Bar(what, value, None, MOST_APPENDS, len(over), value is not None and value <= MOST_APPENDS)


def _bar(
    what: str,
    rounds: Sequence[Sequence[Pair]],
    statistic: Callable[[Sequence[Pair]], float],
    bar: float,
    judged: Callable[[float, Sequence[float] | None], float],
) -> Bar:
    """Of all turns of all rounds. `judged` says what is held against the bar: the value, or an end of its interval."""
    pairs = [pair for one in rounds for pair in one]
    if not pairs:
        return Bar(what, None, None, bar, 0, False)
    by_round = [statistic(one) for one in rounds if one]
    ends = [round(end, 4) for end in student_ratio_interval(by_round)] if len(by_round) > 1 else None
    value = statistic(pairs)
    return Bar(what, value, ends, bar, len(pairs), judged(value, ends) <= bar)


def _seen(value: float, _: Sequence[float] | None) -> float:
    return value


def _end(_: float, ends: Sequence[float] | None) -> float:
    return math.inf if ends is None else ends[1]


def _median_over(pairs: Sequence[Pair]) -> float:
    return statistics.median(on / off for on, off in pairs)


def _over(pairs: Sequence[Pair]) -> float:
    return sum(on for on, _ in pairs) / sum(off for _, off in pairs)
