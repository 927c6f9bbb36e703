"""How fast this engine computes and moves, from the answers that it gave: what the low watermark `auto` weighs.

    send ---------------------> first token        seconds = fixed + computed / prefill rate + moved / move rate
         queue, prefill, moves

Rates are sums over the last answers, so a long prefill counts more than a short one. In a short one the fixed part
would show as slowness. One for the whole server: all sessions share the engine.
"""

from __future__ import annotations

from collections import deque

_NUM_ANSWERS = 256
_LEAST_TOKENS = 64
# Until something was measured: a small model on a CPU. Moving is a copy of memory.
_PRIOR_PREFILL_RATE = 2_000.0
_PRIOR_SPEEDUP = 50.0


class Rates:
    """Rates in tokens a second."""

    def __init__(self) -> None:
        self._computed: deque[tuple[int, float]] = deque(maxlen=_NUM_ANSWERS)
        self._moved: deque[tuple[int, float]] = deque(maxlen=_NUM_ANSWERS)

    def note(self, num_computed: int, num_moved: int, seconds: float) -> None:
        """Take in one answer: what its prompt cost, and the seconds to its first token."""
        if num_computed >= _LEAST_TOKENS and not num_moved:
            self._computed.append((num_computed, seconds))
        elif num_moved >= _LEAST_TOKENS:
            self._moved.append((num_moved, seconds - num_computed / self.prefill_rate))

    @property
    def is_measured(self) -> bool:
        """Whether the prefill rate is one of this engine. Until then it is that of a small model on a CPU."""
        return _rate(self._computed) is not None

    @property
    def prefill_rate(self) -> float:
        return _rate(self._computed) or _PRIOR_PREFILL_RATE

    @property
    def move_rate(self) -> float:
        """Never below the prefill rate: what were slower to move than to compute would be computed."""
        return max(_rate(self._moved) or self.prefill_rate * _PRIOR_SPEEDUP, self.prefill_rate)


def _rate(answers: deque[tuple[int, float]]) -> float | None:
    num_tokens, seconds = sum(n for n, _ in answers), sum(s for _, s in answers)
    return num_tokens / seconds if num_tokens and seconds > 0 else None
