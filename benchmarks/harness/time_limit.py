"""`--max-minutes` of a benchmark that repeats: behind it no repetition is whole any more, and the whole ones are told.

    limit = TimeLimit(15)              from here on
    with limit.kept():                 what is cut in here is given up, and the program goes on behind it
        for number in limit.numbers(5):
            ...                        a repetition

A repetition for which no time is left does not begin, by what the last one took. One that takes longer yet is cut.
It knows no benchmark. A signal of somebody else ends the run as ever.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from acmserve.bench.harness.ending import TIME_LIMIT, end_after
from acmserve.bench.harness.run_log import RUN, duration, progress


class TimeLimit:
    """`minutes` from now on, None for as many as it takes."""

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._minutes, self._clock = minutes, clock
        self._end = math.inf if minutes is None else clock() + 60 * minutes
        if minutes is not None:
            end_after(minutes)

    @property
    def seconds_left(self) -> float:
        """Until the end."""
        return self._end - self._clock()

    def numbers(self, num: int) -> Iterator[int]:
        """1 to `num`, as far as there is time for another one like the last."""
        took = 0.0
        for number in range(1, num + 1):
            if took > self.seconds_left:
                progress(f"{num - number + 1} of {num} repetitions left out: the last one took {duration(took)}")
                return
            began = self._clock()
            yield number
            took = self._clock() - began

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The end of the time ends this block and nothing else. Behind the block it ends nothing."""
        try:
            yield
        except KeyboardInterrupt:
            if RUN.ended_by != TIME_LIMIT:
                raise
            RUN.ended_by = ""
            progress("the time is over: what is whole is told")
        finally:
            if self._minutes is not None:
                end_after(None)
