"""A pool that other people's prompts take, so that what a session was served is in the tier alone."""

from __future__ import annotations

from typing import Any

from tests.support.engine.edits import cut, text
from tests.support.engine.engine import Answer, Engine

BLOCK, NUM_BLOCKS = 32, 64
SMALL_POOL: dict[str, Any] = {"num_gpu_blocks_override": NUM_BLOCKS, "block_size": BLOCK, "max_model_len": 1536}
HISTORY = text(900, "tier")
MARKER, NEW = text(11, "marker"), text(23, "new")
FOLDED = [*cut(HISTORY, 200, 520, MARKER), *NEW]
SUFFIX = len(HISTORY) - 520


def empty_pool(engine: Engine, name: str) -> None:
    """Other people's prompts take every block of the pool, twice."""
    for number in range(4):
        engine.ask(text(32 * 32 - 1, f"{name}-{number}"), salt=f"flood-{name}-{number}")


def fold_after_flood(engine: Engine, session: str) -> Answer:
    """A session's history, then nothing of it in the pool, then the fold."""
    engine.ask(HISTORY, session, "reuse", salt=session)
    empty_pool(engine, session)
    return engine.ask(FOLDED, session, "reuse", salt=session)
