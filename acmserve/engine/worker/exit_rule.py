"""Whether a background chunk may be left between two layers of the model when somebody arrives.

Elsewhere a request waits for the end of the chunk in flight, which the pacer pays for. Knows vLLM's configuration.
Does not know requests or steps.

Decision: only what was checked is on. That is an eager model on one worker for CPUs under model runner V1. A device
that runs beside its host has all layers in its queue before the host could leave. Several workers would have to agree
on the layer, and one on another machine would not see the flag. Steps that are scheduled ahead could read the chunk's
blocks before anybody knows that it was left. A tier below the pool stores blocks as their chunk is scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec


def why_no_exit(vllm_config: VllmConfig, specs: Sequence[KVCacheSpec]) -> str | None:
    """What in this engine's configuration keeps a chunk going to its end. None where nothing does."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    starter, cache = parallel.distributed_executor_backend, vllm_config.cache_config
    compilation = vllm_config.compilation_config.mode.name
    kinds = [type(spec).__name__ for spec in specs]
    refusals = {
        f"engine: device {vllm_config.device_config.device_type}": vllm_config.device_config.device_type != "cpu",
        "engine: model runner V2": vllm_config.use_v2_model_runner,
        "engine: steps are scheduled ahead": bool(vllm_config.scheduler_config.async_scheduling),
        f"engine: the model is compiled ({compilation})": compilation != "NONE",
        f"engine: {parallel.world_size} workers": parallel.world_size > 1,
        f"engine: its worker is started by {starter}": starter in ("ray", "external_launcher"),
        f"engine: {parallel.data_parallel_size} replicas": parallel.data_parallel_size > 1,
        "engine: micro-batches": parallel.use_ubatching,
        "engine: speculative decoding": vllm_config.speculative_config is not None,
        "engine: KV is kept in host memory": cache.kv_offloading_size is not None,
        "engine: fast prefill with shared KV": cache.kv_sharing_fast_prefill,
        f"model: KV cache groups {' and '.join(kinds)}": kinds != ["FullAttentionSpec"],
        "model: pooling": model.runner_type != "generate",
        "model: it takes media": model.is_multimodal_model or model.uses_mrope,
        "model: encoder and decoder": model.is_encoder_decoder,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)
