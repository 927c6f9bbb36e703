"""Families of multi-head latent attention, with a sparse index and pools beside it or without."""

from __future__ import annotations

from typing import Any

from acmserve.bench.families.family import (
    EAGLE3_LAYERS,
    INDEX,
    POOLS,
    Family,
    Settings,
    cache_type,
    drafts,
    eagle_head,
    model,
)
from acmserve.bench.families.stand_ins import LATENT_PREFIXES

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "rope_parameters": _YARN,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_hidden_layers": 3,
}
_INDEX = {"index_n_heads": 4, "index_head_dim": 128, "index_topk": 256}
_EAGLE = model("Eagle3DeepseekV2ForCausalLM", "deepseek_v2", **_LATENT | EAGLE3_LAYERS)

LATENT = (
    Family(
        2,
        "DeepSeek V4 Flash, Pro",
        "deepseek-ai/DeepSeek-V4-Flash",
        model(
            "DeepseekV4ForCausalLM",
            "deepseek_v4",
            **_LATENT | {"head_dim": 512, "num_key_value_heads": 1},
            **_INDEX,
            compress_ratios=[0, 4, 128],
            sliding_window=128,
            o_groups=2,
            o_lora_rank=32,
            hc_mult=4,
            hc_eps=1e-6,
            hc_sinkhorn_iters=2,
            num_hash_layers=1,
            swiglu_limit=10.0,
            rope_theta=10_000.0,
            compress_rope_theta=160_000.0,
            dtype="bfloat16",
        ),
        default=cache_type(block_size=256),
        speed=drafts("mtp", 1, kv_cache_dtype="fp8"),
        dtype="bfloat16",
        cache=POOLS,
    ),
    Family(
        3,
        "Kimi K2.6, K2.7-Code",
        "moonshotai/Kimi-K2.6",
        model("DeepseekV3ForCausalLM", "deepseek_v3", **_LATENT | {"num_hidden_layers": 4}),
        default=drafts("eagle3", 3, _EAGLE),
        stand_ins=(LATENT_PREFIXES,),
        reduced="its text model, which is DeepSeek V3's class",
    ),
    Family(
        6,
        "GLM-5, 5.1, 5.2",
        "zai-org/GLM-5.2",
        model("GlmMoeDsaForCausalLM", "glm_moe_dsa", **_LATENT, **_INDEX, num_nextn_predict_layers=1),
        default=cache_type("fp8_e4m3"),
        speed=drafts("mtp", 5, kv_cache_dtype="fp8_e4m3"),
        cache=INDEX,
    ),
    Family(
        7,
        "MiniMax M3",
        "MiniMaxAI/MiniMax-M3",
        model("MiniMaxM3SparseForCausalLM", "minimax_m3_text", num_local_experts=4, num_experts_per_tok=2),
        default=Settings({"block_size": 128}, "`--block-size 128`"),
        speed=drafts("eagle3", 3, eagle_head(), block_size=128),
        dtype="bfloat16",
        cache=INDEX,
    ),
    Family(
        17,
        "DeepSeek V3.1",
        "deepseek-ai/DeepSeek-V3.1",
        model("DeepseekV3ForCausalLM", "deepseek_v3", **_LATENT, num_nextn_predict_layers=1),
        speed=drafts("mtp", 1),
        stand_ins=(LATENT_PREFIXES,),
    ),
    Family(
        18,
        "DeepSeek V3.2",
        "deepseek-ai/DeepSeek-V3.2",
        model("DeepseekV32ForCausalLM", "deepseek_v32", **_LATENT, **_INDEX, num_nextn_predict_layers=1),
        speed=drafts("mtp", 3),
        cache=INDEX,
    ),
    Family(
        21,
        "Mistral Large 3, Small 4",
        "mistralai/Mistral-Large-3-675B-Instruct-2512",
        model("MistralLarge3ForCausalLM", "deepseek_v3", **_LATENT),
        stand_ins=(LATENT_PREFIXES,),
        reduced="the text model without its images",
    ),
)
