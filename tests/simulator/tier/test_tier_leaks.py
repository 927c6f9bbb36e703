"""A tier below the pool under random scripts: what comes back from it is what was stored, for whom it was stored.

Chunks hold the records of their slots, so that the rules of `slots.py` are asked of loaded KV as of any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from acmserve.engine.scheduling.arrivals import Arrivals
from acmserve.engine.scheduling.tier.reads import TierRead
from acmserve.errors import IntegrityError
from tests.support.simulator.machine import Factory, Machine, block_hasher
from tests.support.simulator.report import Report
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, script_of

ROOMY, TIGHT = 4000, 40


def with_tier(script: Script, num_chunks: int = ROOMY) -> Script:
    """The same with a tier. vLLM cannot reset a cache with requests that are being loaded."""
    machine = replace(script.machine, tier_chunks=num_chunks)
    return replace(script, machine=machine, reset_at_steps=script.reset_at_steps if machine.async_scheduling else ())


@pytest.mark.parametrize("num_chunks", [ROOMY, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_engine_passes_every_script_with_a_tier(factory: Factory, mode: Mode, num_chunks: int) -> None:
    report, num_loaded, num_read = Report(), 0, 0
    dear = (1, 2, 5, 6, 7, 10, 13, 17, 18, 20, 22, 23, 24, 28)
    for seed in dealt_seeds(30, dear, mode):
        simulation = Simulation(with_tier(script_of(mode, seed), num_chunks), factory)
        report += simulation.run()
        num_loaded += simulation.worker.tier.num_loaded
        num_read += simulation.scheduler.connector.reads.num_blocks
    assert report.num_preemptions > 20
    assert report.num_aborted > 10
    assert report.num_moved_requests > 20
    assert report.num_forgotten_keys > 200
    assert num_loaded > 100
    assert num_read > (10 if num_chunks == ROOMY else 0)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_control_hashes_without_lineage_leak(factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """Moved KV would come back for whoever sends the same tokens."""
    monkeypatch.setattr(Arrivals, "lineage_keys", False)
    assert first_failure(lambda seed: Simulation(with_tier(script_of(mode, seed)), factory).run()) == "leak"


MACHINE = Machine(
    async_scheduling=False,
    runner_v2=False,
    block_size=4,
    num_blocks=60,
    connector={"min_move_tokens": 4},
    tier_chunks=ROOMY,
)
SECRET, REDACTED = tuple(range(100, 141)), tuple(range(100, 117))


def num_reachable(factory: Factory, *turns: Turn) -> int:
    """How many blocks of the secret text the tier still has, at the end of a script."""
    simulation = Simulation(Script(0, MACHINE, turns), factory)
    simulation.run()
    connector: Any = simulation.scheduler.connector
    keys = as_request(turns[0], block_hasher(MACHINE.block_size)).block_hashes
    return sum(connector.tier.holds(key) for key in keys)


@pytest.mark.parametrize("at_step", [2, 3, 60], ids=["in its prefill", "while it is served", "behind it"])
def test_redacted_text_is_not_left_in_the_tier(factory: Factory, at_step: int) -> None:
    """Neither what was stored, nor what a live request would have stored under the hashes that it came with."""
    served = Turn("served", SECRET, max_tokens=12, session="s", fidelity="reuse")
    redaction = Turn("redaction", REDACTED, max_tokens=1, session="s", fidelity="exact", forget=True, at_step=at_step)
    assert num_reachable(factory, served, replace(redaction, forget=False)) == 10, "the control"
    assert num_reachable(factory, served, redaction) == len(REDACTED) // 4


def test_integrity_of_a_tier_and_its_reads(factory: Factory) -> None:
    """A forgotten key that stays, and a read that has finished."""
    simulation = Simulation(Script(0, MACHINE, (Turn("a", SECRET, max_tokens=1, session="s"),)), factory)
    simulation.run()
    connector: Any = simulation.scheduler.connector
    request = as_request(Turn("b", SECRET, max_tokens=1), block_hasher(MACHINE.block_size))
    assert connector.tier.holds(request.block_hashes[0])
    connector.tier._doomed.add(request.block_hashes[0] + bytes(4))
    with pytest.raises(IntegrityError, match="tier: 1 forgotten keys"):
        connector.tier.check_integrity()
    request.status = RequestStatus.FINISHED_ABORTED
    connector.reads._reads["b"] = TierRead("a", request)
    with pytest.raises(IntegrityError, match="tier: 1 finished reads"):
        connector.reads.check_integrity()
    request.status = RequestStatus.WAITING
    with pytest.raises(IntegrityError, match="tier: 0 of 1 reads"):
        connector.reads.check_integrity()
