"""An event loop in which time passes only while everybody waits, and then at once.

What sleeps is woken in the order of its seconds, whatever else the machine does. The clock counts no work. It is for
code that goes by the loop's clock, and has neither threads nor sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class InstantLoop(asyncio.SelectorEventLoop):
    """`time` is what was slept so far."""

    def __init__(self) -> None:
        super().__init__()
        self._slept = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def skip(timeout: float | None = None) -> Any:
            if timeout is None:
                return select(None)
            found = select(0)
            if not found:
                self._slept += timeout
            return found

        selector.select = skip

    def time(self) -> float:
        """Seconds."""
        return self._slept


def run_instantly(scene: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run` in such a loop."""
    with asyncio.Runner(loop_factory=InstantLoop) as runner:
        return runner.run(scene)
