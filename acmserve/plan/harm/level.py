"""How bold `auto` is after what it did so far: a level of a calibration, which follows the harm that was measured.

    exact    careful    default    bold       from the most careful to the boldest one that is allowed
      ^--------^ upper bound of the harm above `LIMIT`
                  upper bound far below it, after enough tokens --> one level bolder

A level is judged by the answers that were given at it: after a change the estimate begins anew. Each fall doubles the
tokens that the next rise takes, so a level that harms is not tried again and again. At `exact` nothing is moved, so
nothing is judged, and it stays.

Pure. It knows neither sessions nor thresholds, only the names of levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from acmserve.errors import IntegrityError
from acmserve.plan.calibration import CAREFUL, EXACT, LEVELS
from acmserve.plan.harm.estimate import HarmEstimate

LIMIT = 0.04
"""Nats a token that `auto` may do: what a repair of `bench repairs` has to keep."""
BOLDER_SHARE = 0.5
"""Of the limit. Below that, one level bolder."""
BOLDER_TOKENS = 512
"""Tokens judged at a level before the next one."""
MAX_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class LevelLadder:
    """The levels that `auto` may take, the most careful first. `start` is the calibrated one.

    A session may fall to the first level, a model to `model_floor`: what one session does is not to stop all others.
    """

    names: tuple[str, ...]
    start: int

    @property
    def model_floor(self) -> int:
        """The place of `careful`, or that of the start, where that is more careful."""
        careful = self.names.index(CAREFUL) if CAREFUL in self.names else 0
        return min(careful, self.start)


def ladder_of(calibrated: str, boldest: str = "") -> LevelLadder:
    """The levels up to the calibrated one, or up to `boldest`, where an operator names one that is bolder.

    A calibration of a later release may have a level that is not known. It is taken for bolder than `careful`.
    """
    known = tuple(LEVELS)
    below = known[: known.index(calibrated)] if calibrated in known else (EXACT, CAREFUL)
    above: Sequence[str] = ()
    if boldest in known and calibrated in known:
        above = known[known.index(calibrated) + 1 : known.index(boldest) + 1]
    return LevelLadder((*below, calibrated, *above), len(below))


@dataclass(frozen=True, slots=True)
class AutoLevel:
    """Where on the ladder `auto` stands. `estimate` is that of the answers since the last change."""

    ladder: LevelLadder
    place: int
    floor: int = 0
    estimate: HarmEstimate = field(default_factory=HarmEstimate)
    num_falls: int = 0

    @property
    def name(self) -> str:
        """The level."""
        return self.ladder.names[self.place]

    def with_answer(self, log_ratios: Sequence[float]) -> AutoLevel:
        """The level after one more answer that was given at it."""
        found = self.estimate.with_answer(log_ratios)
        upper = found.upper
        if upper is not None and upper > LIMIT and self.place > self.floor:
            return replace(self, place=self.place - 1, estimate=HarmEstimate(), num_falls=self.num_falls + 1)
        needed = BOLDER_TOKENS * 2 ** min(self.num_falls, MAX_DOUBLINGS)
        is_safe = upper is not None and upper < BOLDER_SHARE * LIMIT and found.num_tokens >= needed
        if is_safe and self.place + 1 < len(self.ladder.names):
            return replace(self, place=self.place + 1, estimate=HarmEstimate())
        return replace(self, estimate=found)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` where the level is none of the ladder, or below its floor."""
        self.estimate.check_integrity()
        if not 0 <= self.floor <= self.place < len(self.ladder.names):
            raise IntegrityError(f"harm: level {self.place} is not in [{self.floor}, {len(self.ladder.names)})")
