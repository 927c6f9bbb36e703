"""What a calibration does in an engine: `auto` moves nothing where no level passed, and more at a bolder one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acmserve.errors import AcmError
from acmserve.plan.calibration import BOLD, DEFAULT, EXACT, LEVELS, NEVER_MOVES, CalibratedShape, Calibration
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation

SHAPE = CalibratedShape("LlamaForCausalLM", 1, 16, 1000)
FULL = tuple(range(1, 601))
FOLDED = (*FULL[:100], *FULL[400:])
OTHER_FULL = tuple(range(300, 900))
OTHER_FOLDED = (*OTHER_FULL[:100], *OTHER_FULL[400:])
"""No word of the 300 that are gone comes back, and 200 stay behind them: too few for the default level."""


def _receipts(
    factory: Factory, folder: Path, level: str, shape: CalibratedShape = SHAPE, asked: str | None = None
) -> list[Any]:
    file = folder / f"{level}.json"
    file.write_text(Calibration("m", shape, level, LEVELS[level]).as_json({}), encoding="utf-8")
    machine = Machine(False, False, block_size=16, num_blocks=2000, connector={"calibration": str(file)})
    turns = (
        Turn("r0", FULL, 1, session="s", fidelity="auto"),
        Turn("r1", FOLDED, 1, session="s", fidelity="auto", after="r0", level=asked),
        Turn("r2", OTHER_FULL, 1, session="t", fidelity="reuse", after="r1"),
        Turn("r3", OTHER_FOLDED, 1, session="t", fidelity="reuse", after="r2"),
    )
    simulation = Simulation(Script(0, machine, turns), factory)
    simulation.run()
    return [simulation.receipts[turn.request_id] for turn in turns]


def test_a_bolder_level_moves_what_the_default_computes(factory: Factory, tmp_path: Path) -> None:
    _, plain, *_ = _receipts(factory, tmp_path, DEFAULT)
    assert (plain["chosen"], plain["moved_tokens"]) == ("exact", 0)
    _, bold, *_ = _receipts(factory, tmp_path, BOLD)
    assert (bold["chosen"], bold["moved_tokens"] > 150) == ("reuse", True)


def test_where_no_level_passed_auto_moves_nothing_and_reuse_still_does(factory: Factory, tmp_path: Path) -> None:
    _, auto, _, reuse = _receipts(factory, tmp_path, EXACT)
    assert (auto["chosen"], auto["moved_tokens"], auto["reason"]) == ("exact", 0, NEVER_MOVES)
    assert reuse["moved_tokens"] > 150


@pytest.mark.parametrize(("asked", "chosen"), [(None, "reuse"), (BOLD, "reuse"), (DEFAULT, "exact"), (EXACT, "exact")])
def test_a_request_may_ask_for_another_level(factory: Factory, tmp_path: Path, asked: str | None, chosen: str) -> None:
    _, auto, *_ = _receipts(factory, tmp_path, BOLD, asked=asked)
    assert (auto["chosen"], auto["moved_tokens"] > 150) == (chosen, chosen == "reuse")
    assert (auto["reason"] == NEVER_MOVES) == (asked == EXACT)


def test_an_engine_of_another_model_does_not_start(factory: Factory, tmp_path: Path) -> None:
    with pytest.raises(AcmError, match="num_layers is 1, and was 9"):
        _receipts(factory, tmp_path, BOLD, CalibratedShape("LlamaForCausalLM", 9, 16, 1000))
