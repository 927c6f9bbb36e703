"""How long an agent's tools take between two requests, drawn by a seed: mostly short, now and then long."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

TOOL_SECONDS = (0.5, 5.0)


def draw_pauses(seed: int) -> Iterator[float]:
    """Seconds without end, between the two of `TOOL_SECONDS`, even on a logarithmic scale."""
    draw = random.Random(seed)
    low, high = map(math.log, TOOL_SECONDS)
    while True:
        yield math.exp(draw.uniform(low, high))
