"""A client's rhythm: the pauses between its last answers and the requests behind them, and what they foretell.

    pauses, sorted     0 ---- x1 ---- x2 ---------- xn . . . . .
    share of comers      1/(n+1) 1/(n+1)   ...        the last 1/(n+1), ever rarer: half of it by 2 xn

Between two pauses that were seen the next is as likely here as there. In front of the shortest there is one more share:
a chunk that ends well before it is nearly free. Of a client without pauses half come within `UNKNOWN_SECONDS`.

It does not know who the client is, nor what a delay costs.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field

from acmserve.errors import IntegrityError

NUM_PAUSES = 32
UNKNOWN_SECONDS = 2.0
GONE_FACTOR = 8.0
"""A client that is silent for so many of its longest pauses is not expected any more."""
GONE_SECONDS = 60.0
"""Nor is one that was never away for long, after this."""


@dataclass(slots=True)
class Rhythm:
    """The last pauses of one client, in seconds."""

    _pauses: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_PAUSES))
    _sorted: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._pauses)

    def note(self, pause: float) -> None:
        """It came back after so long."""
        if len(self._pauses) == NUM_PAUSES:
            del self._sorted[bisect_right(self._sorted, self._pauses[0]) - 1]
        self._pauses.append(max(pause, 0.0))
        insort(self._sorted, max(pause, 0.0))

    def is_gone(self, silence: float) -> bool:
        """Whether it is not expected any more."""
        longest = self._sorted[-1] if self._sorted else 0.0
        return silence > max(GONE_FACTOR * longest, GONE_SECONDS)

    def chance(self, silence: float, seconds: float) -> float:
        """How likely it comes in the next `seconds`, where it has been silent for `silence` and is not back yet."""
        if self.is_gone(silence):
            return 0.0
        left = 1 - self._share(silence)
        return min(max((self._share(silence + seconds) - self._share(silence)) / left, 0.0), 1.0)

    def _share(self, seconds: float) -> float:
        """The share of pauses that are over after so long. Below 1."""
        known = self._sorted
        if not known:
            return seconds / (seconds + UNKNOWN_SECONDS)
        index = bisect_right(known, seconds)
        num = len(known) + 1
        if index == len(known):
            return 1 - max(known[-1], 1e-3) / max(seconds, 1e-3) / num
        begin, end = known[index - 1] if index else 0.0, known[index]
        return (index + (seconds - begin) / (end - begin)) / num

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when the sorted pauses are not those that were noted."""
        if self._sorted != sorted(self._pauses):
            raise IntegrityError(f"pacing: {len(self._pauses)} pauses noted, other {len(self._sorted)} are sorted")
