"""States of short convolutions move with the KV of the attention behind them, on the real engine.

A convolution in front of one layer of attention is an oracle as it is. What the attention reads of a token depends on
that token and on two in front of it. A move begins behind the tokens that saw the folded piece.

    served   [ ..... ][ piece ][ rest of a block )[ moved ............)[ .. ]
    edited   [ .. ][m][ computed .................)[ moved ............)[x
                                                                        ^ the only tokens that read the moved state
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import Lfm2Config

from acmserve.engine.worker.state_mover import StateMover
from tests.engine.test_oracle import HISTORY, MARKER, NEW
from tests.engine.worker.test_architectures import COMMON, PLAIN
from tests.support.engine.edits import cut
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.tiny_model import save_random

PIECE = (200, 700)
BLOCK = 128
LAST = len(HISTORY) // BLOCK * BLOCK
START = -(-(PIECE[1] + 2) // BLOCK) * BLOCK
WHOLE = cut(HISTORY, *PIECE, MARKER)
CONTEXTS = (WHOLE[: LAST - len(HISTORY) + 1], [*WHOLE, *NEW])
"""One ends with the first token that reads the moved state, behind a block. The other reads it through the attention.

There the move goes up to where the turn ended.
"""
MAX_DIFFERENCE = 1e-3
SETTINGS: dict[str, Any] = {**TINY_SETTINGS, "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}
"""vLLM 0.32's rotary kernel for CPUs takes the heads of LFM2, which stand apart, for tokens."""


def lfm2() -> Lfm2Config:
    """A short convolution and a layer of attention, with the fields that vLLM's class asks for."""
    return Lfm2Config(
        **(COMMON | {"num_hidden_layers": 2}),
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        conv_dim=128,
        block_dim=128,
        block_auto_adjust_ff_dim=False,
        rope_parameters=PLAIN,
    )


def fold(engine: Engine, session: str, context: list[int], foldable: Sequence[Sequence[int]] = ()) -> Answer:
    """The answer to an edited context, after the whole one was served."""
    engine.ask(HISTORY, session, "reuse", salt=session, foldable=foldable)
    return engine.ask(context, session, "reuse", salt=session)


def test_moved_inputs_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control leaves each state what it was in front of the move. Nothing has to be named before it is folded."""
    path = save_random(lfm2(), tmp_path / "model")
    with start_engine(path, plugin={}, own_process=False, **SETTINGS) as engine:
        for context in CONTEXTS:
            name = str(len(context))
            end = LAST if len(context) < len(WHOLE) else len(HISTORY)
            engine.ask(context[: PIECE[0]], salt=f"hit {name}")
            hit = engine.ask(context, salt=f"hit {name}")
            exact = engine.ask(context, f"exact {name}", "exact", salt=f"exact {name}")
            assert hit.distance(exact) <= MAX_DIFFERENCE, "a prefix hit of vLLM alone"
            for foldable in ((), (PIECE,)):
                moved = fold(engine, f"moved {name} {foldable}", context, foldable)
                assert moved.receipt is not None
                (move,) = moved.receipt["moves"]
                assert (move["src_start"], move["num_tokens"]) == (START, end - START), moved.receipt
                assert moved.receipt["kept_tokens"] == (PIECE[0] // BLOCK * BLOCK if foldable else 0)
                assert moved.receipt["fallback_reason"] is None
                assert moved.receipt["transition_norm"] == 0
                assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
            with monkeypatch.context() as patch:
                patch.setattr(StateMover, "carry_out", lambda *args: None)
                assert fold(engine, f"stale {name}", context).distance(exact) > 10 * MAX_DIFFERENCE
