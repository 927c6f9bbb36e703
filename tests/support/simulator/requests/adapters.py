"""Which requests of a script run with an adapter."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.simulator.scripts import Turn


def with_adapters(seed: int, turns: tuple[Turn, ...], share: float) -> tuple[Turn, ...]:
    """Some requests run with an adapter. They are drawn apart.

    Adapter 3 is the second load of what 1 is the first load of: vLLM's hashes are the same. So only sessions have both.
    """
    rng = random.Random(f"who has which adapter of {seed}")
    drawn = [(rng.random() < share, rng.choice((1, 2, 3))) for _ in turns]
    return tuple(
        replace(turn, adapter=adapter if turn.session else 2) if has_one else turn
        for turn, (has_one, adapter) in zip(turns, drawn, strict=True)
    )
