"""Multi-head latent attention on the CPU: a small DeepSeek, and an engine that keeps its prefixes."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import DeepseekV2Config
from vllm.platforms.cpu import CpuPlatform

from tests.support.engine.tiny_model import VOCAB_SIZE

DEEPSEEK_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""The scaling of DeepSeek V2 and V3. Without any, the CPU rotary op of vLLM 0.32 reads such keys with wrong strides."""


REFERENCE_BACKEND: dict[str, Any] = {"attention_backend": "CPU_MLA"}
"""Engine arguments. On machines with AMX vLLM would choose AMX_MLA, which takes no float32 weights."""


def small_deepseek() -> DeepseekV2Config:
    """One layer with the sizes of DeepSeek's cache, 512 and 64, and an ordinary MLP."""
    return DeepseekV2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        first_k_dense_replace=1,
        rope_parameters={**DEEPSEEK_YARN, "factor": 4.0, "original_max_position_embeddings": 1024},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="float32",
    )


def with_prefix_caching(patch: pytest.MonkeyPatch) -> None:
    """Let vLLM's reference backend keep prefixes."""
    stock = CpuPlatform.check_and_update_config

    def check_and_update_config(cls: type[CpuPlatform], vllm_config: Any) -> None:
        stock(vllm_config)
        vllm_config.cache_config.enable_prefix_caching = True
        vllm_config.scheduler_config.enable_chunked_prefill = True

    patch.setattr(CpuPlatform, "check_and_update_config", classmethod(check_and_update_config))
