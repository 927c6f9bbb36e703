"""Images in random scripts: text between them moves, they do not, and with M-RoPE no text is turned wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from acmserve.engine.requests import media_ids
from acmserve.engine.requests.request_plan import MEDIA_COMPUTED, MEDIA_SHIFTED
from acmserve.plan import planner
from acmserve.plan.rules.media import TextMoves
from tests.support.simulator.machine import Factory
from tests.support.simulator.report import Report
from tests.support.simulator.requests.media import with_images
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, script_of


def _run(factory: Factory, mode: Mode, seed: int, mrope: bool) -> Report:
    return Simulation(with_images(script_of(mode, seed), mrope=mrope), factory).run()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_text_between_images_moves_and_nothing_else(factory: Factory, mode: Mode) -> None:
    plain, mrope = Report(), Report()
    for seed in dealt_seeds(12, (1, 3, 5, 6, 7, 10), mode):
        plain += _run(factory, mode, seed, False)
        mrope += _run(factory, mode, seed, True)
    assert plain.num_turned_tokens > 100
    assert 0 < mrope.num_turned_tokens < plain.num_turned_tokens
    assert plain.fallback_reasons[MEDIA_COMPUTED] > 0
    assert plain.fallback_reasons[MEDIA_SHIFTED] == 0
    assert mrope.fallback_reasons[MEDIA_SHIFTED] > 0


def _everything(moves: Any, *rest: Any, **fields: Any) -> TextMoves:
    return TextMoves(tuple(moves))


def _blind(text_moves: Callable[..., TextMoves]) -> Callable[..., TextMoves]:
    return lambda *args, media_shift_positions: text_moves(*args, media_shift_positions=False)


CONTROLS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "images move": (planner, "text_moves", _everything, {"token", "position"}),
    "positions of M-RoPE are those of tokens": (planner, "text_moves", _blind(planner.text_moves), {"position"}),
    "images have their placeholders' ids": (media_ids.MediaIds, "_id_of", lambda ids, key: 998, {"token", "leak"}),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control(factory: Factory, monkeypatch: pytest.MonkeyPatch, control: str) -> None:
    owner, name, broken, kinds = CONTROLS[control]
    monkeypatch.setattr(owner, name, broken)
    assert first_failure(lambda seed: _run(factory, MODES[0], seed, True)) in kinds
