"""What a cache-aware router learns from the engine: exact blocks alone, under the hashes of their tokens."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.distributed.kv_events import BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from acmserve.engine.vllm import kv_events
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation

BLOCK_SIZE = 4
FULL = tuple(range(10, 110))
FOLDED = (*range(10, 43), 7, 8, *range(61, 110))
AGAIN = (*FOLDED, *range(300, 340))


def _announced(factory: Factory) -> tuple[Simulation, list[BlockStored]]:
    """A fold and an append behind it. The events that went out."""
    machine = Machine(
        False, False, block_size=BLOCK_SIZE, num_blocks=300, connector={"min_move_tokens": 4}, kv_events=True
    )
    turns = (
        Turn("full", FULL, 1, session="s", fidelity="reuse"),
        Turn("folded", FOLDED, 1, session="s", fidelity="reuse", after="full"),
        Turn("again", AGAIN, 1, session="s", fidelity="reuse", after="folded"),
    )
    simulation = Simulation(Script(0, machine, turns), factory)
    events: list[BlockStored] = []

    class Publisher:
        def publish(self, batch: KVEventBatch) -> None:
            events.extend(event for event in batch.events if isinstance(event, BlockStored))

        def shutdown(self) -> None:
            """Nothing is open."""

    scheduler: Any = simulation.scheduler
    scheduler.kv_event_publisher = Publisher()
    simulation.run()
    assert simulation.receipts["folded"]["moved_tokens"] > 0
    return simulation, events


def _false_blocks(simulation: Simulation, events: list[BlockStored]) -> int:
    """Blocks announced for tokens that a stranger would not find."""
    num_false = 0
    for event in events:
        assert len(event.token_ids) == len(event.block_hashes) * BLOCK_SIZE
        assert event.block_hashes
        for block_hash in event.block_hashes:
            num_false += block_hash not in _exact_hashes(simulation)
    return num_false


def _exact_hashes(simulation: Simulation) -> set[Any]:
    requests = [simulation._request(Turn("stranger", prompt, 1)) for prompt in (FULL, FOLDED, AGAIN)]
    return {maybe_convert_block_hash(block_hash) for request in requests for block_hash in request.block_hashes}


def test_moved_blocks_are_not_announced(factory: Factory) -> None:
    simulation, events = _announced(factory)
    assert _false_blocks(simulation, events) == 0
    announced = {block_hash for event in events for block_hash in event.block_hashes}
    full = simulation._request(Turn("stranger", FULL, 1))
    assert announced >= {maybe_convert_block_hash(block_hash) for block_hash in full.block_hashes}


def test_negative_control(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the filter the router hears of blocks that only the session can use."""
    monkeypatch.setattr(kv_events, "_build_exact", lambda build, request, **fields: build(request, **fields))
    assert _false_blocks(*_announced(factory)) > 0
