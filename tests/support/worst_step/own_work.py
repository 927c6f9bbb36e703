"""The part of a call into vLLM's scheduler that acmserve's own code takes, in CPU time of the calling thread.

    vLLM's scheduler   schedule() ......................................................
    acmserve             [ begin_step ]   [ cap_chunk ]      [ finish_step ][ metadata ]        added up

vLLM comes in through two doors: the step's hooks, and the connector. What is called through one of them is counted
until it returns. What else the machine does hardly changes CPU time of one thread. Waits for Python's lock, which the
planning thread takes too, are not in it. `tests/server/app/test_victim.py` measures those from outside.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class OwnWork:
    """Counts what passes the doors of one scheduler. Nothing is counted for a stock engine: it has none."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._seconds = 0.0
        self._is_inside = False
        connector, hooks = scheduler.connector, getattr(scheduler, "_hooks", None)
        if connector is not None and hooks is not None:
            for name, function in vars(type(connector)).items():
                if inspect.isfunction(function) and not name.startswith("_"):
                    setattr(connector, name, self.counted(getattr(connector, name)))
            scheduler.__dict__["_hooks"] = _Door(hooks, self)

    def take_ms(self) -> float:
        """Milliseconds since this was asked last."""
        taken, self._seconds = self._seconds, 0.0
        return 1e3 * taken

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted. One that is called by another one of ours counts once."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return function(*args, **kwargs)
            self._is_inside, start = True, time.thread_time()
            try:
                result = function(*args, **kwargs)
                return tuple(result) if inspect.isgenerator(result) else result
            finally:
                self._is_inside = False
                self._seconds += time.thread_time() - start

        return call


class _Door:
    """Step hooks of which everything is counted, properties too."""

    def __init__(self, hooks: object, work: OwnWork) -> None:
        self._inner, self._work = hooks, work

    def __getattr__(self, name: str) -> Any:
        value = self._work.counted(getattr)(self._inner, name)
        return self._work.counted(value) if callable(value) else value
