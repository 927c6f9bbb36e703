"""The ways in which a calibration serves each case. `auto` runs there at the level `every`, so it always moves."""

from __future__ import annotations

from acmserve.bench.repairs.ways import EXACT, REUSE, Way

ECHOES = Way("echoes", "auto")
WAYS = (EXACT, REUSE, ECHOES)
