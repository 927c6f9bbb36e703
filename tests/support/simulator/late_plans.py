"""An executor that takes its time: a call runs when somebody has asked often enough whether it is done.

It stands in for the planning thread. What it does depends on the number of steps and not on the machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any


class LatePlan(Future[Any]):
    """Done when it was asked `num_asks` times."""

    def __init__(self, call: Callable[[], Any], num_asks: int) -> None:
        super().__init__()
        self._call = call
        self._num_asks = num_asks

    def done(self) -> bool:
        self._num_asks -= 1
        if self._num_asks < 0 and not super().done():
            try:
                self.set_result(self._call())
            except ZeroDivisionError as error:
                self.set_exception(error)
        return super().done()


class LateExecutor(Executor):
    """Calls take 0 to 4 asks, one after the other."""

    def __init__(self) -> None:
        self._num_asks: Iterator[int] = itertools.cycle([3, 0, 1, 4, 2])

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return LatePlan(lambda: fn(*args, **kwargs), next(self._num_asks))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing runs."""
