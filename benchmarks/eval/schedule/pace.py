"""How fast a run goes: how much is asked side by side, when it stops, and how long the rest takes.

    23 of 268: babilong tokens500/1, tools: score 1.00, 3.1 s; about 41:20 min left

Decision: the rest is told by ways. A way with tools takes several times as long as one without, and the first minutes
of a run have cheap ways alone. What a way takes is the mean of its own samples, or of all where none was played yet.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from acmserve.bench.harness.run_log import duration


@dataclass(frozen=True, slots=True)
class EvalPace:
    """`num_parallel` strands are played side by side. `until` is a time of the clock `now`, None for no end.

    Behind it no sample begins. Those that were begun are played to their end.
    """

    num_parallel: int = 1
    until: float | None = None
    now: Callable[[], float] = time.monotonic

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.until is not None and self.now() >= self.until


ONE_BY_ONE = EvalPace()


@dataclass(slots=True)
class EvalProgress:
    """`total` samples in ways are to be played, of which `left` are not, by way. `seconds` are those played, by way.

    Any thread may tell of its sample.
    """

    total: int
    left: dict[str, int]
    pace: EvalPace
    say: Callable[[str], None]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    _began: float = field(init=False)
    _done: dict[str, int] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._began = self.pace.now()

    def known(self, records: Iterable[Mapping[str, Any]]) -> None:
        """What an earlier run has played tells how long ways take."""
        for record in records:
            self.seconds.setdefault(record["way"], []).append(record["seconds"])

    def played(self, record: Mapping[str, Any]) -> None:
        """One sample is in the journal."""
        with self._lock:
            way = record["way"]
            self.known([record])
            self.left[way] -= 1
            self._done[way] = self._done.get(way, 0) + 1
            number = self.total - sum(self.left.values())
            told = record["error"] or f"score {record['score']:.2f}"
            what = f"{record['task']} {record['sample']}, {way}: {told}, {record['seconds']:.1f} s"
            self.say(f"{number} of {self.total}: {what}; about {duration(self.seconds_left())} left")

    def seconds_left(self) -> float:
        """How long the rest may take, at the pace of this run."""
        done, left = self._weight(self._done), self._weight(self.left)
        now = self.pace.now()
        seconds = (now - self._began) * left / done if done else 0.0
        return seconds if self.pace.until is None else min(seconds, max(0.0, self.pace.until - now))

    def _weight(self, counts: Mapping[str, int]) -> float:
        every = statistics.fmean(one for found in self.seconds.values() for one in found)
        means = {way: statistics.fmean(found) for way, found in self.seconds.items()}
        return sum(num * (means.get(way, every) or 1e-3) for way, num in counts.items())
