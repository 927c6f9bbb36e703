"""Moved KV answers nobody but the session that moved it, and never an `exact` request.

A model of two layers, so that moved KV differs from exact KV and a leak shows in the logits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from acmserve.engine.plugin.connector import AcmConnector
from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.tiny_model import TWO_LAYERS

HISTORY = text(900, "history")
CONTEXT = [*cut(HISTORY, 200, 520, text(11, "marker")), *text(23, "new")]
EXACT = 1e-3
"""Rounding: what the same tokens differ by when they are prefilled in other chunks."""
NUM_EXACT_TOKENS = 211
"""Tokens of CONTEXT in front of the moved ones."""

STRANGERS: dict[str, tuple[str | None, str | None, str | None]] = {
    "exact request of the same session": ("s", "exact", "salt"),
    "request without session": (None, None, "salt"),
    "reuse request of another session": ("t", "reuse", "salt"),
    "same session id, another salt": ("s", "reuse", "pepper"),
    "same session id, no salt": ("s", "reuse", None),
}


def find_leaks(engine: Engine) -> dict[str, float]:
    """Who of the strangers gets an answer off the exact one, and by how much."""
    engine.ask(HISTORY, "s", "reuse", salt="salt")
    moved = engine.ask(CONTEXT, "s", "reuse", salt="salt")
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] > 300
    leaks = {}
    answers: dict[str, Answer] = {}
    for name, (session, fidelity, salt) in STRANGERS.items():
        answers[name] = engine.ask(CONTEXT, session, fidelity, salt=salt)
    fresh = engine.ask(CONTEXT, salt="never used before")
    assert moved.distance(fresh) > 100 * EXACT, "moved KV is not distinguishable here, the test says nothing"
    for name, answer in answers.items():
        if answer.distance(fresh) > EXACT:
            leaks[name] = answer.distance(fresh)
        if answer.receipt is not None:
            assert answer.receipt["moved_tokens"] == 0, name
    return leaks


def start(tmp_path: Path) -> Path:
    return TWO_LAYERS.write(tmp_path)


def test_moved_kv_answers_nobody_else(tmp_path: Path) -> None:
    with start_engine(start(tmp_path), plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as engine:
        assert find_leaks(engine) == {}
        again = engine.ask([*CONTEXT, *text(5, "again")], "s", "reuse", salt="salt")
        assert again.receipt is not None
        assert again.receipt["computed_tokens"] == 5, "the session itself keeps its moved KV"


def test_an_exact_request_keeps_nothing_behind_the_edit(tmp_path: Path) -> None:
    with start_engine(start(tmp_path), plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as engine:
        engine.ask(HISTORY, "s", "reuse")
        engine.ask(CONTEXT, "s", "reuse")
        exact = engine.ask(CONTEXT, "s", "exact")
        assert exact.receipt is not None
        assert exact.receipt["kept_tokens"] <= NUM_EXACT_TOKENS
        assert exact.receipt["moves"] == []


def test_without_lineage_keys_it_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: this is what the keys are for."""
    monkeypatch.setattr(AcmConnector, "lineage_keys", False)
    with start_engine(start(tmp_path), plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as engine:
        leaks = find_leaks(engine)
        assert "request without session" in leaks
        assert "exact request of the same session" in leaks
