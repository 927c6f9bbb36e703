"""A defect of vLLM 0.32 that every script with priorities runs into sooner or later, and its repair.

vLLM registers the hashes of a prefill chunk when it schedules it. Under the priority policy the request can be
preempted later in the same step. Its chunk is taken out of the step and its blocks are freed, but their hashes stay.
The next prefix hit on them reads KV that nobody computed. Known upstream: vllm-project/vllm issue 57580, pull request
43569. The mixin of acmserve repairs the defect for the schedulers it is composed with. The stock schedulers of this
suite get the same.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request

from tests.support.simulator.machine import SchedulerClass


def repaired(base: SchedulerClass) -> SchedulerClass:
    """`base`, forgetting the hashes of what a preempted request has not computed."""

    class Repaired(base):  # type: ignore[misc]
        def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
            block_ids = self.kv_cache_manager.get_block_ids(request.request_id)[0]
            num_computed_blocks = request.num_computed_tokens // self.block_size
            self.kv_cache_manager.evict_blocks(set(block_ids[num_computed_blocks:]))
            super()._preempt_request(request, *args, **kwargs)

    return Repaired
