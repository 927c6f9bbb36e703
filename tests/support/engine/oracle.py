"""The oracle of one layer: moved KV is exact there, so `reuse` and `exact` answer alike."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.engine.edits import Tokens
from tests.support.engine.engine import Engine


def check_reuse(
    engine: Engine, session: str, history: Tokens, contexts: Iterable[Tokens], max_difference: float
) -> None:
    """Serve `history`, then each of its edits with moves and without. All edits together move over 100 tokens."""
    engine.ask(history, session, "reuse", salt=session)
    num_moved = 0
    for context in contexts:
        moved = engine.ask(context, session, "reuse", salt=session)
        exact = engine.ask(context, "other", "exact", salt=session)
        assert moved.receipt is not None
        assert moved.distance(exact) <= max_difference, (session, moved.receipt)
        num_moved += moved.receipt["moved_tokens"]
    assert num_moved > 100, (session, "the edit was computed, the comparison says nothing")
