"""Background requests above a tier: one that is ended early leaves there what it computed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from acmserve.engine.plugin.tiered_connector import TieredConnector
from acmserve.engine.vllm.tier.cpu_tier import CpuTier
from tests.simulator.tier.test_tier_leaks import with_tier
from tests.support.simulator.background import with_background
from tests.support.simulator.machine import Factory
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, script_of

SOME_MODES = MODES[:2]


@contextmanager
def uncomputed_blocks() -> Iterator[list[int]]:
    """For each request that ends with keys: how many blocks it gives to the tier behind those that it computed."""
    found: list[int] = []
    original = TieredConnector.request_finished_all_groups

    def watched(connector: Any, request: Any, block_ids: tuple[list[int], ...]) -> Any:
        answer = original(connector, request, block_ids)
        status = connector.tier.connector.scheduler._req_status.get(request.request_id)
        if status is not None and request.status.name != "FINISHED_ABORTED":
            [group] = status.group_states
            num_given = min(len(group.block_ids), len(group.offload_keys))
            found.append(num_given - request.num_computed_tokens // connector._groups.hash_block_size)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TieredConnector, "request_finished_all_groups", watched)
        yield found


def _num_beyond(factory: Factory, mode: Mode) -> int:
    """Requests of some scripts that give more than they computed. Chunks end within a block."""
    with uncomputed_blocks() as found:
        for seed in dealt_seeds(12, (1, 5, 6, 10), mode, SOME_MODES):
            script = with_background(with_tier(script_of(mode, seed)))
            machine = replace(script.machine, connector=script.machine.connector | {"precompute_chunk_tokens": 3})
            Simulation(replace(script, machine=machine), factory).run()
    assert len(found) > 100
    return sum(num > 0 for num in found)


@pytest.mark.parametrize("mode", SOME_MODES, ids=str)
def test_a_request_that_ends_early_stores_what_it_computed(factory: Factory, mode: Mode) -> None:
    """vLLM takes it for computed to its prompt's end. The blocks of a preempted one are others' by then."""
    assert _num_beyond(factory, mode) == 0


def test_control_vllm_would_store_the_rest(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuTier, "drop_uncomputed", lambda *_: None)
    assert _num_beyond(factory, MODES[0]) > 0
