"""The tier on an engine without a GPU: KV blocks are copied within host memory, at once.

vLLM's own worker of the tier copies between a GPU and the host, on streams. It refuses every other platform. Here a
block is one row of a tensor, and so is its copy. What the tier holds, and under which keys, stays vLLM's.

Knows rows. Does not know keys, requests or moves.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostTierWorker(OffloadingWorker):
    """One row for each chunk and tensor. A transfer is through when it was submitted."""

    def __init__(self, kv_caches: CanonicalKVCaches, num_chunks: int) -> None:
        self._rows = [kv.tensor for kv in kv_caches.tensors]
        self._chunks = [torch.empty((num_chunks, rows.shape[1]), dtype=rows.dtype) for rows in self._rows]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """KV blocks to chunks."""
        return self._copy(job_id, zip(self._rows, self._chunks, strict=True), src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Chunks to KV blocks."""
        return self._copy(job_id, zip(self._chunks, self._rows, strict=True), src_spec, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        """The transfers since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Every transfer is through."""

    def _copy(self, job_id: int, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], src: Any, dst: Any) -> bool:
        began_at, num_bytes = time.perf_counter(), 0
        for source, copies in pairs:
            copied = source[_index(src)]
            copies[_index(dst)] = copied
            num_bytes += copied.nbytes
        seconds = time.perf_counter() - began_at
        self._done.append(TransferResult(job_id, success=True, transfer_size=num_bytes, transfer_time=seconds))
        return True


class HostTierSpec(CPUOffloadingSpec):
    """vLLM's tier in host memory, for an engine whose KV blocks lie there, too."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._host_worker: HostTierWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """This process's copies."""
        if self._host_worker is None:
            self._host_worker = HostTierWorker(kv_caches, self.num_chunks)
        return self._host_worker


def _index(spec: Any) -> torch.Tensor:
    return torch.as_tensor(spec.block_ids, dtype=torch.int64)
