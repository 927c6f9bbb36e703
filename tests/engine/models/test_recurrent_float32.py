"""States of gated delta nets move in float32, with logits as they come: the deep oracle at the bound of other models.

`test_recurrent_moves.py` runs vLLM's own kernels. They round to bfloat16, so its logits are made small. Here torch
stands in for these kernels (`float32_delta_nets.py`). Nothing is made small. Controls are ten times as wrong as the
bound.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acmserve.engine.worker import state_mover
from tests.engine.models.test_recurrent_moves import (
    CONTEXT,
    LAYERS,
    all_experts,
    check_answers_behind_pieces,
    check_folded_answers,
    fold,
    save_recurrent,
)
from tests.engine.test_oracle import MAX_DIFFERENCE
from tests.support.engine.engine import TINY_SETTINGS, start_engine
from tests.support.kernels.float32_delta_nets import with_float32_delta_nets

SETTINGS: dict[str, Any] = {**TINY_SETTINGS, "dtype": "float32"}


@pytest.mark.parametrize("layer", LAYERS)
def test_moved_states_are_right(layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control leaves each state what it was in the old context."""
    with_float32_delta_nets(monkeypatch)
    path = save_recurrent(all_experts(), tmp_path, layer, scale=1.0)
    with start_engine(path, plugin={"min_move_tokens": 16}, own_process=False, **SETTINGS) as engine:
        moved = fold(engine, "moved")
        exact = engine.ask(CONTEXT, "exact", "exact", salt="exact")
        assert moved.receipt is not None
        assert moved.receipt["fallback_reason"] is None
        assert moved.receipt["moved_tokens"] > 100, moved.receipt
        assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
        if layer < 3:
            with monkeypatch.context() as patch:
                patch.setattr(state_mover, "compose", lambda there, before, after, parts: after)
                assert fold(engine, "stale").distance(exact) > 10 * MAX_DIFFERENCE
        check_folded_answers(engine, monkeypatch, layer, MAX_DIFFERENCE)
        check_answers_behind_pieces(engine, monkeypatch, layer, MAX_DIFFERENCE)
