"""A tier that is reset with the prefix cache, while blocks are being stored in it: it is empty, and goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.simulator.machine import Factory, Machine, SchedulerClass, block_hasher
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode

BLOCK = 4
TEXT = tuple(range(100, 141))
NUM_STEPS = 12


def _reset_with_connector(num_under_way: list[int]) -> Any:
    """As `reset_prefix_cache?reset_connector=true` asks for it. `num_under_way` gets the transfers of each reset."""

    def adapt(base: SchedulerClass) -> SchedulerClass:
        class Resetting(base):  # type: ignore[misc]
            def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = True) -> bool:
                below, key = self._below, _keys()[0]
                num_under_way.append(len(below._jobs))
                done = bool(super().reset_prefix_cache(reset_running_requests, reset_connector))
                assert not below._jobs
                assert len(below._current_batch_jobs_to_flush) == num_under_way[-1], "the workers are told of each"
                assert not self.connector.tier.holds(key)
                self.connector.tier.check_integrity()
                return done

            @property
            def _below(self) -> Any:
                return self.connector.tier.connector.scheduler

        return Resetting

    return adapt


def _keys() -> Any:
    return as_request(Turn("keys", TEXT, max_tokens=1), block_hasher(BLOCK)).block_hashes


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_tier_is_reset_while_blocks_are_stored(factory: Factory, mode: Mode) -> None:
    """vLLM resets the connector, and so does the scheduler mixin, right behind it. Then what is served is stored."""
    machine = Machine(
        mode.async_scheduling,
        mode.runner_v2,
        block_size=BLOCK,
        max_num_batched_tokens=16,
        connector={"min_move_tokens": 4},
        tier_chunks=4000,
    )
    num_under_way: list[int] = []
    adapted = factory.adapted(_reset_with_connector(num_under_way))
    for step in range(1, NUM_STEPS):
        served = Turn("served", TEXT, max_tokens=3, session="s", fidelity="reuse")
        again = Turn("again", TEXT, max_tokens=1, session="s", fidelity="reuse", after="served", at_step=NUM_STEPS)
        simulation = Simulation(Script(step, machine, (served, again), reset_at_steps=(step,)), adapted)
        simulation.run()
        connector: Any = simulation.scheduler.connector
        assert all(connector.tier.holds(key) for key in _keys())
    assert sum(num > 0 for num in num_under_way) > 1, num_under_way


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_was_forgotten_while_it_was_stored_is_gone_with_a_reset(factory: Factory, mode: Mode) -> None:
    """Nothing waits any more for the end of its transfer."""
    machine = Machine(
        mode.async_scheduling, mode.runner_v2, block_size=BLOCK, connector={"min_move_tokens": 4}, tier_chunks=4000
    )
    doomed: list[int] = []

    def adapt(base: SchedulerClass) -> SchedulerClass:
        class Forgetting(base):  # type: ignore[misc]
            def schedule(self, *args: Any, **kwargs: Any) -> Any:
                tier = self.connector.tier
                if not doomed and tier.connector.scheduler._jobs:
                    tier.forget(_keys())
                    doomed.append(len(tier._doomed))
                    tier.reset()
                    tier.check_integrity()
                    assert not tier._doomed
                return super().schedule(*args, **kwargs)

        return Forgetting

    served = Turn("served", TEXT, max_tokens=3, session="s", fidelity="reuse")
    Simulation(Script(0, machine, (served,)), factory.adapted(adapt)).run()
    assert doomed
    assert doomed[0] > 0
