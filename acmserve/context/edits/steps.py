"""Work in steps, so that a server can do something else between two of them.

    steps    edit 0 | text 0 | text 1 | edit 1 | ... | result     a generator yields nothing, and returns the result

A step is as short as one text or one edit. Whoever needs no pause asks for the result. It works on immutable states, so
nobody sees a part of it, and one that is never finished has done nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]


def result_of(steps: Steps[Result]) -> Result:
    """All steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
