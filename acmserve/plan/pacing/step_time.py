"""How long a step of so many tokens takes: a fixed part and one for each token, fitted to the steps that were seen.

    seconds = fixed + per_token * tokens        older steps count less: the deeper a chunk lies, the longer it takes

Steps of fewer tokens than a block say little of a chunk and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.8


@dataclass(slots=True)
class StepTime:
    """The weighted sums of the steps that were seen."""

    least_tokens: int
    _num: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def note(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` took so long."""
        if num_tokens < self.least_tokens or seconds < 0:
            return
        x, y = float(num_tokens), seconds
        for name, value in (("_num", 1.0), ("_x", x), ("_y", y), ("_xx", x * x), ("_xy", x * y)):
            setattr(self, name, _WEIGHT * getattr(self, name) + value)

    def predict(self, num_tokens: int) -> float:
        """Seconds of a step of `num_tokens`. 0 where nothing was seen."""
        if not self._num:
            return 0.0
        mean_x, mean_y = self._x / self._num, self._y / self._num
        spread = self._xx / self._num - mean_x**2
        slope = mean_y / mean_x
        if spread > 1e-6 * mean_x**2:
            slope = min(max((self._xy / self._num - mean_x * mean_y) / spread, 0.0), slope)
        return max(mean_y + slope * (num_tokens - mean_x), 0.0)
