"""Whether the holes of a request are computed in one forward pass, as rows that share its block table.

Elsewhere each hole takes a step of its own: the answer is the same, later. Knows vLLM's configuration and the attention
backends of the loaded layers. Does not know requests or steps.

Decision: only what was checked is on. That is vLLM's attention for CPUs under both model runners, in one group of full
attention. Its metadata of a batch is a row of lengths and a block table for each request, and no more. FlashAttention 3
has the same rows. It is off until a GPU has checked it (`acmserve bench gpu --stages holes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from acmserve.engine.vllm.passes import runner_v2

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

CHECKED = frozenset({"CPU_ATTN"})
"""Attention backends by vLLM's name, with the version of FlashAttention."""
TO_CHECK = frozenset({"FLASH_ATTN 3"})
"""Those whose rows read alike, and which nobody has run yet."""


def why_step_by_step(vllm_config: VllmConfig, specs: Sequence[KVCacheSpec]) -> str | None:
    """What in this engine's configuration keeps its holes apart. None where nothing does."""
    model, scheduler = vllm_config.model_config, vllm_config.scheduler_config
    kinds = [type(spec).__name__ for spec in specs]
    device, is_v2 = vllm_config.device_config.device_type, vllm_config.use_v2_model_runner
    unfit = runner_v2.why_no_passes() if is_v2 else None
    graphs = vllm_config.compilation_config.cudagraph_mode
    refusals = {
        f"engine: device {device}": device not in ("cpu", "cuda"),
        f"engine: model runner V1 on {device}": device != "cpu" and not is_v2,
        unfit or "": unfit is not None,
        "engine: CUDA graphs of whole steps": graphs is not None and graphs.mixed_mode().name == "FULL",
        f"model: KV cache groups {' and '.join(kinds)}": kinds != ["FullAttentionSpec"],
        "engine: speculative decoding": vllm_config.speculative_config is not None,
        "engine: prefill is not chunked": not scheduler.enable_chunked_prefill,
        "engine: micro-batches": vllm_config.parallel_config.use_ubatching,
        "engine: fast prefill with shared KV": vllm_config.cache_config.kv_sharing_fast_prefill,
        "model: pooling": model.runner_type != "generate",
        "model: it takes media": model.is_multimodal_model or model.uses_mrope,
        "model: encoder and decoder": model.is_encoder_decoder,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)


def why_not_in_rows(model: Any, layers: Iterable[Any]) -> str | None:
    """What of a loaded model keeps the holes apart: inputs of its own, or attention that nobody checked. None for a
    model whose layers all have a backend that was.
    """
    if hasattr(model, "get_model_state_cls"):
        return f"model: {type(model).__name__} makes inputs of its own"
    unchecked = {backend_of(layer) for layer in layers} - CHECKED
    return f"engine: attention backend {min(unchecked)}" if unchecked else None


def backend_of(layer: Any) -> str:
    """The attention backend of a layer by vLLM's name, with the version of FlashAttention."""
    if not hasattr(layer, "get_attn_backend"):
        return "none"
    name: str = layer.get_attn_backend().get_name()
    version = getattr(getattr(layer, "impl", None), "vllm_flash_attn_version", None)
    return name if version is None else f"{name} {version}"


def max_pass_tokens(vllm_config: VllmConfig, why_none: Callable[[], str | None]) -> int:
    """Tokens that one step computes of one request between its copies. None where `why_none` has a reason."""
    if why_none() is not None:
        return 0
    scheduler = vllm_config.scheduler_config
    size: int = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    return min(size, scheduler.long_prefill_token_threshold or size)
