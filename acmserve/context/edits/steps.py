"""Work in steps, so that a server can do something else between two of them.

    steps    edit 0 | text 0 | text 1 | edit 1 | ... | result     a generator yields nothing, and returns the result

A step is as short as one text or one edit. Whoever needs no pause asks for the result. It works on immutable states, so
nobody sees a part of it, and one that is never finished has done nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]


class StepRun(Generic[Result]):
    """Steps to be gone through once. `result` is there behind the last one."""

    result: Result

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[None]:
        self.result = yield from self._steps


def result_of(steps: Steps[Result]) -> Result:
    """All steps at once."""
    run = StepRun(steps)
    for _ in run:
        pass
    return run.result
