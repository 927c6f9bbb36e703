"""Negative control of the oracle, in a file of its own: only one engine core may live in a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from acmserve.engine.worker import engine_ropes
from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.support.engine.edits import cut
from tests.support.engine.engine import TINY_SETTINGS, start_engine
from tests.support.engine.tiny_model import TINY_MODELS, TinyModel


@pytest.mark.parametrize("model", [TINY_MODELS[0], TINY_MODELS[3]], ids=lambda m: m.name)
def test_without_rotation_the_oracle_fails(model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: keys that stay at their old positions are found out."""
    monkeypatch.setattr(engine_ropes, "ropes_of_model", lambda model, names, forward: dict.fromkeys(names))
    path = model.write(tmp_path)
    with start_engine(path, plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as engine:
        engine.ask(HISTORY, "s", "reuse")
        context = [*cut(HISTORY, 200, 520, MARKER), *NEW]
        assert engine.ask(context, "s", "reuse").distance(engine.ask(context, "t", "exact")) > 10 * MAX_DIFFERENCE
