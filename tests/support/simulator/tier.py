"""The workers' half of a tier below the KV blocks, without tensors: chunks hold the records of a block's slots.

As vLLM's worker does it (`offloading/worker.py`):

    a step begins    stores that are flushed, and those that the last step noted, read their blocks
    transfers start  loads begin. Their records arrive with the answer to the step after
    a step ends      its stores are noted

A slot that is read before its load is through holds poison.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from tests.support.simulator.slots import SlotMemory
from tests.support.simulator.truth import Record


class SimulatedTier:
    """The chunks of one tier, and what is under way."""

    def __init__(self, memory: SlotMemory) -> None:
        self._memory = memory
        self._chunks: dict[int, list[Record | None]] = {}
        self._noted: dict[int, Any] = {}
        self._loads: dict[int, Any] = {}
        self._begun: dict[int, Any] = {}
        self._done: list[int] = []
        self.num_loaded = 0

    def begin(self, below: Any) -> None:
        """Before the blocks of the step are overwritten."""
        for job_id in below.jobs_to_flush or ():
            if job_id in below.store_jobs:
                self._noted[job_id] = below.store_jobs.pop(job_id)
        for job_id, job in self._noted.items():
            for block, chunk in _pairs(job.src_spec, job.dst_spec):
                size = self._memory.block_size
                self._chunks[chunk] = self._memory.slots[block * size : (block + 1) * size]
            self._done.append(job_id)
        self._noted = {}
        self._begun, self._loads = self._loads, dict(below.load_jobs)

    def end(self, below: Any, answer: ModelRunnerOutput) -> ModelRunnerOutput:
        """The answer to a step, with the transfers that are through."""
        self._noted.update(below.store_jobs)
        loaded = set()
        for job_id, job in self._begun.items():
            for chunk, block in _pairs(job.src_spec, job.dst_spec):
                size = self._memory.block_size
                self._memory.slots[block * size : (block + 1) * size] = self._chunks[chunk]
                self.num_loaded += size
            self._done.append(job_id)
            loaded.add(job.req_id)
        self._begun = {}
        done, self._done = self._done, []
        if done:
            metadata = OffloadingWorkerMetadata()
            for job_id in done:
                metadata.mark_completed(job_id)
            answer.kv_connector_output = KVConnectorOutput(
                finished_recving=loaded or None, kv_connector_worker_meta=metadata
            )
        return answer


def _pairs(src: Any, dst: Any) -> list[tuple[int, int]]:
    return list(zip(src.block_ids.tolist(), dst.block_ids.tolist(), strict=True))
