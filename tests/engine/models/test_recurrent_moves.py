"""States of gated delta nets move with the KV of the attention beside them, on the real engine.

The deep oracle: the output projection of all layers but one is zero, so moved states and keys are exact at any depth.
vLLM's gated delta nets take bfloat16 alone on a CPU. So the logits are made small, and with them what rounding does.
`test_recurrent_float32.py` has them as they come.

    served   [ ..... ][ piece ][ rest of a block )[ moved ............)
    edited   [ .. ][m][ computed .................)[ moved ............)[ new ]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig, Qwen3NextConfig

from acmserve.engine.config import engine_config
from acmserve.engine.vllm.model.token_inputs import TokenInputs
from acmserve.engine.worker import state_mover
from acmserve.engine.worker.copies import StateMove
from acmserve.engine.worker.layer_transition import LayerTransition
from acmserve.engine.worker.model_verdict import judge_model
from tests.engine.models.test_hybrid_edits import qwen3_next
from tests.engine.test_oracle import HISTORY, MARKER, NEW
from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.tiny_model import save_random

PIECE = (200, 765)
"""It ends where the next block begins, nearly. Each token between it and the moved ones makes a state forget it: behind
68 of them a stale state was 8 times as wrong as the rounding of bfloat16 on one processor, behind 3 of them 22 times.
"""
CONTEXT = [*cut(HISTORY, *PIECE, MARKER), *NEW]
SETTINGS: dict[str, Any] = {**TINY_SETTINGS, "dtype": "bfloat16"}
BLOCK = 128
SCALE = 1 / 128
MAX_DIFFERENCE = 1e-3
LAYERS = (0, 1, 2, 3) if "ACMSERVE_WINDOWS" in os.environ else (0,)
"""Which layer mixes tokens: three of gated delta nets, one of attention. `make windows` runs all of them."""


def all_experts() -> PretrainedConfig:
    """Every token asks all experts. With fewer, rounding would choose other ones."""
    config = qwen3_next()
    assert isinstance(config, Qwen3NextConfig)
    config.num_experts_per_tok = config.num_experts
    return config


def save_recurrent(config: PretrainedConfig, folder: Path, layer: int, scale: float = SCALE) -> Path:
    """A random model in which this layer alone mixes tokens, with slow gates and small logits."""
    path = save_random(config, folder / "model")
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "linear_attn.out_proj.weight")) and f"layers.{layer}." not in name:
            tensor.zero_()
        if name.endswith("down_proj.weight"):
            tensor.zero_()
        if name.endswith("A_log"):
            tensor.fill_(-6.0)
        if name.endswith("lm_head.weight"):
            tensor.mul_(scale)
    save_file(tensors, weights, metadata={"format": "pt"})
    return path


def fold(engine: Engine, session: str, foldable: Sequence[Sequence[int]] = (PIECE,)) -> Answer:
    """The answer to the edited context, after the whole one was served."""
    engine.ask(HISTORY, session, "reuse", salt=session, foldable=foldable)
    return engine.ask(CONTEXT, session, "reuse", salt=session)


@pytest.mark.parametrize("layer", LAYERS)
def test_moved_states_are_right(layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control leaves each state what it was in the old context."""
    path = save_recurrent(all_experts(), tmp_path, layer)
    assert judge_model(str(path), **SETTINGS, **engine_config()).refusal is None, "doctor says what the engine does"
    with start_engine(path, plugin={}, own_process=False, **SETTINGS) as engine:
        moved = fold(engine, "moved")
        exact = engine.ask(CONTEXT, "exact", "exact", salt="exact")
        unnamed = fold(engine, "unnamed", ())
        assert moved.receipt is not None
        assert unnamed.receipt is not None
        start = -(-(PIECE[1] + 3) // BLOCK) * BLOCK
        (move,) = moved.receipt["moves"]
        assert (move["src_start"], move["num_tokens"]) == (start, len(HISTORY) - start), moved.receipt
        assert moved.receipt["kept_tokens"] == PIECE[0] // BLOCK * BLOCK
        assert moved.receipt["fallback_reason"] is None
        assert 0 < moved.receipt["transition_norm"] < 1
        assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
        assert unnamed.receipt["moved_tokens"] == 0
        assert unnamed.receipt["fallback_reason"] == "source_state_not_kept"
        assert unnamed.receipt["transition_norm"] is None
        assert unnamed.distance(exact) <= MAX_DIFFERENCE
        if layer < 3:
            monkeypatch.setattr(state_mover, "compose", lambda there, before, after, parts: after)
            assert fold(engine, "stale").distance(exact) > 10 * moved.distance(exact)


def test_a_turn_goes_on_from_the_state_behind_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token is computed in front. A fold of what follows an answer begins there, too.

    Controls: vLLM alone goes on where the last whole block of the prompt ended. And a state that is not copied shows.
    """
    path = save_recurrent(all_experts(), tmp_path, 0)
    prompt = HISTORY[:700]
    with start_engine(path, plugin={}, own_process=False, **SETTINGS) as engine:
        said = engine.ask(prompt, "s", max_tokens=100).token_ids
        served = [*prompt, *said]
        context = [*served, *HISTORY[700:900], *NEW]
        restored = engine.ask(context, "s")
        folded = engine.ask([*served, *MARKER, *NEW], "s")
        fresh = [engine.ask(tokens, salt="fresh") for tokens in (context, [*served, *MARKER, *NEW])]
        for answer, exact in zip((restored, folded), fresh, strict=True):
            assert answer.receipt is not None
            assert answer.receipt["kept_tokens"] == len(served) - 2
            assert answer.receipt["transition_norm"] is None
            assert answer.distance(exact) <= MAX_DIFFERENCE
        monkeypatch.setattr(state_mover.StateMover, "carry_out", lambda *args: None)
        engine.ask(prompt, "stale", max_tokens=100, salt="stale")
        assert engine.ask(context, "stale", salt="stale").distance(fresh[0]) > 10 * restored.distance(fresh[0])
    with start_engine(path, plugin={"keep_tail": False}, own_process=False, **SETTINGS) as engine:
        engine.ask(prompt, "s", max_tokens=100)
        alone = engine.ask(context, "s").receipt
        assert alone is not None
        assert alone["kept_tokens"] == (len(prompt) - 1) // BLOCK * BLOCK


ANSWERED = (HISTORY[:780], 30)
"""The prompt of a turn, and how many tokens it says. Its piece ends in front of a block, which ends with the prompt."""
MORE, NUM_SAID = 14, 25
"""Tokens that the next turn adds, and how many it says."""


def fold_answers(engine: Engine, session: str) -> tuple[list[int], int, Answer]:
    """Two turns, then the piece is folded: (the new context, tokens served before, the answer)."""
    prompt, num_said = ANSWERED
    settings: dict[str, Any] = {"salt": session, "foldable": (PIECE,)}
    said = engine.ask(prompt, session, max_tokens=num_said, **settings).token_ids
    second = [*prompt, *said, *text(MORE, "more")]
    said = engine.ask(second, session, max_tokens=NUM_SAID, **settings).token_ids
    context = [*cut([*second, *said], *PIECE, MARKER), *NEW]
    return context, len(second) + len(said) - 1, engine.ask(context, session, "reuse", salt=session)


def check_folded_answers(engine: Engine, monkeypatch: pytest.MonkeyPatch, layer: int, least: float = 0.0) -> None:
    """States move over prefilled and decoded tokens of two turns. Controls: as they were, and without the decoded.

    Of those the first remains, for an answer of its own has a transition of its own. A control is ten times as wrong as
    what is right, and as `least`.
    """
    context, num_served, moved = fold_answers(engine, "answers")
    exact = engine.ask(context, "exact", "exact", salt="exact")
    assert moved.receipt is not None
    start = -(-(PIECE[1] + 3) // BLOCK) * BLOCK
    (move,) = moved.receipt["moves"]
    assert (move["src_start"], move["num_tokens"]) == (start, num_served - start), moved.receipt
    assert 0 < moved.receipt["transition_norm"] <= 1
    assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
    if layer == 3:
        return
    wrong = 10 * max(moved.distance(exact), least)
    add = LayerTransition.add

    def add_prefilled(transition: LayerTransition, inputs: TokenInputs) -> None:
        if inputs.num_tokens > 1 or not transition.num_tokens:
            add(transition, inputs)
        else:
            transition.num_tokens += 1

    with monkeypatch.context() as patch:
        patch.setattr(LayerTransition, "add", add_prefilled)
        lacking = fold_answers(engine, "answers, lacking")[2]
        assert lacking.receipt is not None
        assert lacking.receipt["moves"] == moved.receipt["moves"]
        assert lacking.distance(exact) > wrong
    with monkeypatch.context() as patch:
        patch.setattr(state_mover, "compose", lambda there, before, after, parts: after)
        assert fold_answers(engine, "answers, stale")[2].distance(exact) > wrong


def check_answers_behind_pieces(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, layer: int, least: float = 0.0
) -> None:
    """Two pieces are folded, each up to the header of an answer. Both answers move, whole but for their last token.

    Controls, as wrong as there: the states in front of the answers were never copied, or stay what they were.
    """
    prompt, result, header = HISTORY[:500], text(120, "result"), text(3, "header")
    first = (200, len(prompt) - len(header))

    def fold_both(session: str) -> tuple[list[int], list[tuple[int, int]], Answer]:
        said = engine.ask(prompt, session, max_tokens=30, salt=session, foldable=(first,)).token_ids
        served = [*prompt, *said]
        second = (len(served), len(served) + len(result))
        asked = [*served, *result, *header]
        said = engine.ask(asked, session, max_tokens=25, salt=session, foldable=(first, second)).token_ids
        context = [*cut(cut([*asked, *said], *second, MARKER), *first, MARKER), *NEW]
        moves = [(len(prompt), 29), (len(asked), 24)]
        return context, moves, engine.ask(context, session, "reuse", salt=session)

    context, moves, moved = fold_both("behind pieces")
    exact = engine.ask(context, "exact", "exact", salt="exact")
    assert moved.receipt is not None
    assert [(move["src_start"], move["num_tokens"]) for move in moved.receipt["moves"]] == moves, moved.receipt
    assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
    other = [*prompt, *NEW]
    kept = engine.ask(other, "behind pieces", "exact", salt="behind pieces")
    assert kept.receipt is not None
    assert kept.receipt["kept_tokens"] == len(prompt) - 1
    assert kept.distance(engine.ask(other, salt="fresh")) <= MAX_DIFFERENCE
    if layer == 3:
        return
    wrong = 10 * max(moved.distance(exact), least)
    carry_out = state_mover.StateMover.carry_out
    with monkeypatch.context() as patch:
        patch.setattr(
            state_mover.StateMover,
            "carry_out",
            lambda mover, copies: carry_out(mover, [copy for copy in copies if isinstance(copy, StateMove)]),
        )
        lacking = fold_both("behind pieces, lacking")[2]
        assert lacking.receipt is not None
        assert lacking.receipt["moves"] == moved.receipt["moves"]
        assert lacking.distance(exact) > wrong
    with monkeypatch.context() as patch:
        patch.setattr(state_mover, "compose", lambda there, before, after, parts: after)
        assert fold_both("behind pieces, stale")[2].distance(exact) > wrong


@pytest.mark.parametrize("layer", LAYERS)
def test_states_move_over_decoded_answers(layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_recurrent(all_experts(), tmp_path, layer)
    plugin = {"min_move_tokens": 16}
    with start_engine(path, plugin=plugin, own_process=False, **SETTINGS) as engine:
        check_folded_answers(engine, monkeypatch, layer)
        check_answers_behind_pieces(engine, monkeypatch, layer)
