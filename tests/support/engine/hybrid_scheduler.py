"""vLLM's real scheduler for a model with several KV cache groups: full attention beside windows and recurrent states.

Tokens are counted and blocks are looked up. No worker computes anything, so what a step computes is what vLLM says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.support.simulator.machine import Factory, Machine, block_hasher

BLOCK = 16
SHAPE: dict[str, Any] = {"num_kv_heads": 1, "head_size": 16, "dtype": torch.float32}
Span = tuple[int, int]


@dataclass(frozen=True)
class Hybrid:
    """Groups beside one of full attention: windows of so many tokens, and recurrent states in blocks of 16."""

    windows: tuple[int, ...] = ()
    num_recurrent: int = 0
    retention: int | None = 0
    num_blocks: int = 800
    chunk: int = 256
    long_prefill: int = 0
    reserve_full_input: bool = True
    plugin: dict[str, Any] = field(default_factory=dict)

    def specs(self) -> list[Any]:
        full = FullAttentionSpec(block_size=BLOCK, **SHAPE)
        windows = [SlidingWindowSpec(block_size=BLOCK, sliding_window=w, **SHAPE) for w in self.windows]
        size = full.page_size_bytes // 4
        state = MambaSpec(block_size=BLOCK, shapes=((size,),), dtypes=(torch.float32,), mamba_cache_mode="align")
        return [full, *windows, *[state] * self.num_recurrent]


class HybridScheduler:
    """One scheduler. `ask` runs a request to its end and returns its receipt."""

    def __init__(self, factory: Factory, hybrid: Hybrid) -> None:
        machine = Machine(
            async_scheduling=False,
            runner_v2=False,
            block_size=BLOCK,
            num_blocks=hybrid.num_blocks,
            max_num_batched_tokens=hybrid.chunk,
            long_prefill_threshold=hybrid.long_prefill,
            reserve_full_input=hybrid.reserve_full_input,
            connector=hybrid.plugin,
        )
        config = factory._config(machine)
        config.cache_config.mamba_cache_mode = "align" if hybrid.num_recurrent else "none"
        groups = [KVCacheGroupSpec([f"layers.{index}"], spec) for index, spec in enumerate(hybrid.specs())]
        kv_cache = KVCacheConfig(
            num_blocks=hybrid.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=hybrid.retention,
        )
        self.scheduler: Scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=kv_cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.connector: Any = self.scheduler.connector
        self.steps: list[dict[str, int]] = []
        self.num_preemptions = 0
        self._hasher = block_hasher(BLOCK)
        self._num_asked = 0

    def request(self, tokens: Sequence[int], foldable: Iterable[Span] = (), session: str = "s") -> Request:
        """A request of a session, under `exact`, that is not in the scheduler yet."""
        acm: dict[str, Any] = {"session_id": session, "fidelity": "exact", "foldable": [list(s) for s in foldable]}
        params = SamplingParams(max_tokens=1, ignore_eos=True, extra_args={"kv_transfer_params": {"acm": acm}})
        self._num_asked += 1
        return Request(
            request_id=f"r{self._num_asked}",
            prompt_token_ids=list(tokens),
            sampling_params=params,
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def ask(self, tokens: Sequence[int], foldable: Iterable[Span] = (), session: str = "s") -> dict[str, Any]:
        """The receipt of a request that runs alone."""
        return self.ask_all([self.request(tokens, foldable, session)])[0]

    def ask_all(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """Run requests at the same time. Their receipts. Integrity is checked after each step."""
        receipts: dict[str, dict[str, Any]] = {}
        for request in requests:
            self.scheduler.add_request(request)
        while self.scheduler.requests:
            output = self.scheduler.schedule()
            self.steps.append(dict(output.num_scheduled_tokens))
            self.num_preemptions += len(output.preempted_req_ids or ())
            for answer in self._process(output):
                if answer.kv_transfer_params:
                    receipts[answer.request_id] = answer.kv_transfer_params["acm"]["receipt"]
            self.connector.check_integrity()
        return [receipts[request.request_id] for request in requests]

    def _process(self, output: Any) -> list[Any]:
        ids = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[request_id] for request_id in ids]
        sampled = [[7] if r.num_computed_tokens >= r.num_tokens else [] for r in requests]
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: index for index, name in enumerate(ids)}, sampled_token_ids=sampled
        )
        outputs = self.scheduler.update_from_output(output, result)
        return [answer for client in outputs.values() for answer in client.outputs]
