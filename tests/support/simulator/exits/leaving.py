"""A worker that leaves some of the background chunks that it may leave, and a simulation in which it does.

    chunk left   none of its tokens has KV, and what is sampled behind it is no token of the model
    flag         raised at random, also where nobody comes of it

The worker leaves whether somebody arrived or not: what the scheduler takes back must not depend on that. Engines that
would refuse (runner V2, a compiled model) may leave here, too, as long as steps are not scheduled ahead.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from acmserve.engine.scheduling.exits.chunk_exits import ChunkExits
from acmserve.engine.worker.messages import ChunkLeft
from tests.support.simulator.machine import Factory
from tests.support.simulator.scripts import Script
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.worker import Worker

NO_TOKEN = -7
LEFT_SHARE, RAISED_SHARE = 0.4, 0.05


class LeavingWorker(Worker):
    """See the module. `num_left` counts the chunks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_left = 0
        self._rng = random.Random(1)
        self._is_left = False

    def execute(self, output: SchedulerOutput, handed_out: Iterable[int]) -> ModelRunnerOutput:
        """As ever, but for a chunk that is left."""
        may_leave = bool(getattr(output.kv_connector_metadata, "flags", ()))
        self._is_left = may_leave and self._rng.random() < LEFT_SHARE
        answer = super().execute(output, handed_out)
        if self._is_left:
            self.num_left += 1
            answer.kv_connector_output = KVConnectorOutput(kv_connector_worker_meta=ChunkLeft("layer 0"))
        return answer

    def _forward(self, scheduled: dict[str, int]) -> dict[str, list[int]]:
        if not self._is_left:
            return super()._forward(scheduled)
        ((request_id, num_tokens),) = scheduled.items()
        start, table, size = (
            self.runner.num_computed(request_id),
            self.runner.block_table(request_id),
            self.memory.block_size,
        )
        for position in range(start, start + num_tokens):
            self.memory.slots[table[position // size] * size + position % size] = None
        sampled = {request_id: [NO_TOKEN]} if self.runner.samples(request_id, num_tokens) else {}
        self.runner.advance(scheduled, sampled)
        return sampled


class LeavingSimulation(Simulation):
    """One script whose background chunks may be left."""

    def __init__(self, script: Script, factory: Factory) -> None:
        super().__init__(script, factory, worker_class=LeavingWorker)
        connector: Any = self.scheduler.connector
        self.exits: ChunkExits = connector.precompute.exits
        self.exits.refusal = None
        self._flags = random.Random(2)

    @property
    def num_left(self) -> int:
        assert isinstance(self.worker, LeavingWorker)
        return self.worker.num_left

    def _send_due(self) -> None:
        if self._flags.random() < RAISED_SHARE:
            self.exits.on_queued()
        super()._send_due()
