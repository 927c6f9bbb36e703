"""The time of day for ages and for the order of use, that never runs backward.

    clock    10  20  30 |  5   6   7  ...  31      set back by 25 seconds at |
    here     10  20  30 | 30  30  30  ...  31

Who sets a clock back would make the session used last look as if it had been used first. Here time stands still until
the clock has caught up. A clock that is set back before a start is not known to have been ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate


def forward(clock: Callable[[], float]) -> Callable[[], float]:
    """Seconds since the epoch, as `clock` says, and never fewer than before."""
    return accumulate(iter(clock, None), max).__next__
