"""Families of full attention alone, with keys and values for each head."""

from __future__ import annotations

from acmserve.bench.families.family import PLAIN, Family, cache_type, drafts, eagle_head, model
from acmserve.bench.families.stand_ins import SIGMOID_EXPERTS

_HALF = {**PLAIN, "partial_rotary_factor": 0.5}
_EAGLE = model(
    "EagleMistralForCausalLM", "mistral", num_hidden_layers=1, sliding_window=None, rope_parameters=dict(PLAIN)
)

DENSE = (
    Family(
        1,
        "Tencent Hy3",
        "tencent/Hy3",
        model(
            "HYV3ForCausalLM",
            "hy_v3",
            first_k_dense_replace=1,
            num_experts=4,
            num_experts_per_tok=2,
            num_shared_experts=1,
            expert_hidden_dim=64,
            moe_intermediate_size=64,
            qk_norm=True,
            route_norm=True,
            router_scaling_factor=2.8,
            num_nextn_predict_layers=1,
            rope_parameters=dict(PLAIN),
        ),
        speed=drafts("mtp", 2),
    ),
    Family(
        8,
        "MiniMax M2.5, M2.7",
        "MiniMaxAI/MiniMax-M2.7",
        model(
            "MiniMaxM2ForCausalLM",
            "minimax_m2",
            num_local_experts=4,
            num_experts_per_tok=2,
            scoring_func="sigmoid",
            use_routing_bias=True,
            use_qk_norm=True,
            rotary_dim=16,
            rope_parameters=_HALF,
        ),
        speed=cache_type(),
        stand_ins=(SIGMOID_EXPERTS,),
    ),
    Family(
        9,
        "Qwen3-Coder, Qwen3 MoE",
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        model(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            norm_topk_prob=True,
            rope_parameters=dict(PLAIN),
        ),
        speed=cache_type(),
    ),
    Family(
        10,
        "GLM-4.5, 4.6, 4.7",
        "zai-org/GLM-4.7",
        model(
            "Glm4MoeForCausalLM",
            "glm4_moe",
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
            use_qk_norm=True,
            attention_bias=True,
            num_nextn_predict_layers=1,
            partial_rotary_factor=0.5,
            rope_parameters=_HALF,
        ),
        speed=drafts("mtp", 1),
    ),
    Family(
        20,
        "Mistral Medium 3.5, Devstral 2",
        "mistralai/Mistral-Medium-3.5-128B",
        model("MistralForCausalLM", "mistral", sliding_window=None, rope_parameters=dict(PLAIN)),
        speed=drafts("eagle", 3, _EAGLE),
        reduced="the text model without its images",
    ),
    Family(
        25,
        "Seed-OSS, Llama 3.3, Qwen3, SmolLM2",
        "ByteDance-Seed/Seed-OSS-36B-Instruct",
        model("LlamaForCausalLM", "llama", rope_parameters=dict(PLAIN)),
        speed=drafts("eagle3", 3, eagle_head()),
        reduced="Llama's class, which most of them share",
    ),
    Family(
        26,
        "Llama 4 Scout",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        model(
            "Llama4ForCausalLM",
            "llama4_text",
            num_local_experts=4,
            num_experts_per_tok=1,
            intermediate_size_mlp=128,
            interleave_moe_layer_step=1,
            attention_chunk_size=512,
            no_rope_layers=[1, 1, 1, 0],
            attn_temperature_tuning=True,
            floor_scale=512,
            attn_scale=0.1,
            use_qk_norm=True,
            rope_parameters=dict(PLAIN),
        ),
        speed=cache_type(),
        reduced="the text model without its images",
    ),
)
