"""Background chunks that are left: nobody reads what they did not compute, and all of it is computed in the end."""

from __future__ import annotations

from functools import partial

import pytest

from acmserve.engine.scheduling.exits.chunk_exits import ChunkExits
from acmserve.errors import IntegrityError
from tests.support.simulator.background import with_background
from tests.support.simulator.exits import leaving
from tests.support.simulator.exits.leaving import LeavingSimulation
from tests.support.simulator.failure import SimulationFailure
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, script_of

BLOCK_SIZE, PROMPT = 16, tuple(range(100, 200))
SETTINGS = {"chunk_tokens": 64, "chunk_s": 1000, "quiet_s": 0, "max_pool_share": 0.5, "min_age_s": 0}
PRECOMPUTE = SETTINGS | {"delay_share": 1}

SYNC_MODES = [mode for mode in MODES if not mode.async_scheduling]
sync_modes = pytest.mark.parametrize("mode", SYNC_MODES, ids=str)


def _run(factory: Factory, mode: Mode, seed: int) -> tuple[Report, int]:
    simulation = LeavingSimulation(with_background(script_of(mode, seed)), factory)
    return simulation.run(), simulation.num_left


@sync_modes
def test_chunks_that_are_left_pass_every_script(factory: Factory, mode: Mode) -> None:
    """20 scripts, most in each mode. Chunks are left in them, and what they were for is reached all the same."""
    report, num_left = Report(), 0
    for seed in dealt_seeds(20, (1, 2, 3, 5, 6, 10, 15), mode, SYNC_MODES):
        one, left = _run(factory, mode, seed)
        report += one
        num_left += left
    assert num_left > 200
    assert report.num_precomputed_tokens > 100
    assert report.background["ready"] > 100
    assert report.num_aborted > 30


@sync_modes
def test_negative_control(factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """Where a chunk that was left counts as computed, the scripts trip."""
    monkeypatch.setattr(ChunkExits, "takes_back", False)
    assert first_failure(partial(_run, factory, mode), 20) in {"poison", "output"}


@sync_modes
@pytest.mark.parametrize("unregisters", [True, False], ids=["", "control"])
def test_a_request_that_ends_in_its_chunk_leaves_nothing(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode, unregisters: bool
) -> None:
    """Its client ends it while the chunk is in flight, and it is freed before the scheduler hears that it was left."""
    monkeypatch.setattr(ChunkExits, "unregisters", unregisters)
    monkeypatch.setattr(leaving, "LEFT_SHARE", 1.0)
    settings = {f"precompute_{name}": value for name, value in PRECOMPUTE.items()}
    machine = Machine(mode.async_scheduling, mode.runner_v2, BLOCK_SIZE, max_num_batched_tokens=256, connector=settings)
    first = Turn("first", PROMPT[:1], max_tokens=1)
    ahead = Turn("ahead", PROMPT, max_tokens=1, session="s", precompute=True, abort_after_steps=1, after="first")
    turn = Turn("turn", PROMPT, max_tokens=1, session="s", fidelity="exact", at_step=10, after="ahead")
    simulation = LeavingSimulation(Script(0, machine, (first, ahead, turn)), factory)
    if unregisters:
        simulation.run()
        assert simulation.num_left == 2
        assert simulation.receipts["turn"]["computed_tokens"] == len(PROMPT)
        return
    with pytest.raises(SimulationFailure, match="poison"):
        simulation.run()


@sync_modes
def test_a_chunk_without_blocks_is_noticed(factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    begin = ChunkExits.begin
    monkeypatch.setattr(ChunkExits, "begin", lambda self, *chunk: begin(self, *chunk[:3], ()))
    assert first_failure(partial(_run, factory, mode), 20) == "integrity"


def test_a_word_about_no_chunk_is_refused(factory: Factory) -> None:
    exits = ChunkExits(factory.scheduler(script_of(MODES[0], 1).machine).kv_cache_manager.block_pool, 16, None)
    assert exits.end(is_left=False) is None
    with pytest.raises(IntegrityError, match="no step computes"):
        exits.end(is_left=True)
