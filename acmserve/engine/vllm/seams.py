"""Every private part of vLLM that the engine relies on, as a table."""

from __future__ import annotations

from acmserve.seams import Seam, attributes, methods

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_OUTPUT = "vllm.v1.core.sched.output"
_CACHE_UTILS = "vllm.v1.core.kv_cache_utils"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_QUEUE = f"{_CACHE_UTILS}:FreeKVCacheBlockQueue"
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator"
_GROUP_MANAGER = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager"
_REQUEST = "vllm.v1.request:Request"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_METADATA = "vllm.v1.attention.backend:CommonAttentionMetadata"

KV_CACHE_GROUPS = Seam(
    f"{_CACHE_UTILS}:get_kv_cache_groups",
    ("vllm_config", "kv_cache_spec"),
    elsewhere=("vllm.v1.core.kv_cache_planning:get_kv_cache_groups",),
)
"""The second place is of vLLM 0.33."""

SEAMS: tuple[Seam, ...] = (
    *methods("vllm.config.scheduler:SchedulerConfig", get_scheduler_cls="self"),
    *methods("vllm.config.vllm:VllmConfig", _post_init_kv_transfer_config="self"),
    *attributes("vllm.config.cache:CacheConfig", "kv_offloading_size kv_offloading_backend kv_sharing_fast_prefill"),
    *attributes(
        "vllm.config.model:ModelConfig",
        "uses_mrope mrope_num_dims is_encoder_decoder is_mm_prefix_lm multimodal_config is_multimodal_model",
    ),
    *attributes("vllm.config.compilation:CompilationConfig", "mode cudagraph_mode"),
    *methods("vllm.config.compilation:CUDAGraphMode", mixed_mode="self"),
    *methods("vllm.config.multimodal:MultiModalConfig", is_multimodal_pruning_enabled="self"),
    *methods("vllm.platforms.interface:Platform", update_block_size_for_backend="vllm_config"),
    *methods(
        _SCHEDULER,
        schedule="self throttle_prefills",
        _handle_blocked_waiting_request="self request",
        _reserve_prefill_lookahead="self request num_computed_tokens num_new_tokens",
        _build_kv_connector_meta="self connector scheduler_output",
        _preempt_request="self request timestamp drop_stale_output",
        update_from_output="self scheduler_output model_runner_output",
        _free_cow_retained_blocks="self blocks fence_seq",
        reset_prefix_cache="self reset_running_requests reset_connector",
        finish_requests="self request_ids finished_status",
        get_num_unfinished_requests="self",
    ),
    *attributes(
        _SCHEDULER,
        "connector running waiting kv_holding_waiting num_waiting_for_streaming_input max_num_active_reqs requests "
        "kv_cache_manager sched_step_seq use_v2_model_runner model_uses_mrope",
    ),
    *methods(
        "vllm.v1.core.sched.request_queue:RequestQueue", add_request="self request", remove_requests="self requests"
    ),
    *methods(_REQUEST, update_block_hashes="self", get_finished_reason="self", take_events="self"),
    *attributes(
        _REQUEST,
        "_block_hasher block_hashes _all_token_ids num_computed_tokens num_in_flight_tokens status client_index "
        "trace_headers",
    ),
    *methods(
        _MANAGER,
        get_block_ids="self request_id",
        get_blocks="self request_id",
        evict_blocks="self block_ids",
    ),
    *attributes(_MANAGER, "block_pool watermark_blocks coordinator use_eagle"),
    *attributes(_COORDINATOR, "single_type_managers"),
    *methods(_COORDINATOR, find_longest_cache_hit="self block_hashes max_cache_hit_length"),
    *methods(
        _GROUP_MANAGER,
        cache_blocks="self request num_tokens",
        remove_skipped_blocks="self request_id processed_computed_tokens",
    ),
    *attributes(_GROUP_MANAGER, "req_to_blocks num_cached_block block_pool max_admission_blocks_per_request"),
    *attributes("vllm.v1.kv_cache_interface:SlidingWindowSpec", "sliding_window extra_retained_tokens"),
    *methods(
        _POOL,
        _insert_block_hash="self block_hash_with_group_id block num_tokens",
        _maybe_evict_cached_block="self block",
        unpin_blocks="self blocks on_reuse",
        touch="self blocks",
        get_num_free_blocks="self",
        take_events="self",
        cache_partial_block="self request block num_tokens",
        _build_block_stored_event="self request block_hashes parent_block_hash start_token_idx end_token_idx "
        "block_size kv_cache_group_id extra_keys_list",
    ),
    *methods("vllm.v1.core.block_pool:BlockHashToBlockMap", get_one_block="self key"),
    *attributes("vllm.v1.core.block_pool:BlockHashToBlockMap", "_cache"),
    *attributes(
        _POOL,
        "hash_block_size cached_block_hash_to_block blocks enable_caching enable_kv_cache_events free_block_queue "
        "null_block kv_event_queue",
    ),
    *methods(_QUEUE, remove="self block", iter_blocks_after="self cursor"),
    *attributes(_QUEUE, "fake_free_list_tail num_free_blocks"),
    *attributes(f"{_CACHE_UTILS}:KVCacheBlock", "block_id ref_cnt block_hash is_null prev_free_block next_free_block"),
    Seam(f"{_CACHE_UTILS}:make_block_hash_with_group_id", ("block_hash", "group_id")),
    Seam(f"{_CACHE_UTILS}:maybe_convert_block_hash", ("hash_bytes",)),
    Seam(f"{_CACHE_UTILS}:generate_block_hash_extra_keys", ("request", "start_token_idx", "end_token_idx")),
    Seam(f"{_CACHE_UTILS}:hash_block_tokens", ("hash_function", "parent_block_hash", "curr_block_token_ids")),
    Seam("vllm.utils.hashing:get_hash_fn_by_name", ("hash_fn_name",)),
    *attributes(
        f"{_OUTPUT}:SchedulerOutput",
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens has_sync_kv_loads",
    ),
    *attributes(
        f"{_OUTPUT}:CachedRequestData", "req_ids new_token_ids new_block_ids num_computed_tokens num_output_tokens"
    ),
    *methods(f"{_OUTPUT}:NewRequestData", from_request="request block_ids prefill_token_ids uses_mrope"),
    *attributes("vllm.v1.engine:EngineCoreOutput", "request_id kv_transfer_params"),
    Seam("vllm.forward_context:set_forward_context", ("attn_metadata", "vllm_config", "num_tokens")),
    *attributes("vllm.forward_context:ForwardContext", "skip_compiled"),
    *attributes("vllm.config.compilation:CompilationConfig", "static_forward_context"),
    *methods("vllm.lora.layers.base:BaseLayerWithLoRA", set_lora="self index lora_a lora_b"),
    *methods("vllm.model_executor.layers.attention.attention:Attention", forward="self query key value"),
    *methods("vllm.model_executor.layers.attention.mla_attention:MLAAttention", forward="self q kv_c_normed k_pe"),
    KV_CACHE_GROUPS,
    Seam("vllm.v1.attention.backends.utils:resolve_kv_cache_layout", ("vllm_config", "supported_layouts")),
    Seam("vllm.v1.attention.backends.utils:get_supported_kv_cache_layouts", ("backends",)),
    *methods(
        "vllm.v1.worker.gpu_worker:Worker",
        get_kv_connector_handshake_metadata="self",
        get_model="self",
        get_draft_model="self",
    ),
    *methods(
        _RUNNER,
        _model_forward="self input_ids positions intermediate_tensors inputs_embeds",
        _prepare_inputs="self scheduler_output num_scheduled_tokens",
        _build_attention_metadata="self num_tokens num_reqs max_query_len",
    ),
    *attributes(_RUNNER, "input_batch positions input_ids query_start_loc optimistic_seq_lens_cpu attn_groups"),
    *attributes(
        "vllm.v1.worker.gpu_input_batch:InputBatch", "num_reqs req_ids req_id_to_index token_ids_cpu block_table"
    ),
    *methods(
        "vllm.v1.worker.block_table:MultiGroupBlockTable",
        compute_slot_mapping="self num_reqs query_start_loc positions",
    ),
    *methods("vllm.v1.worker.utils:AttentionGroup", get_metadata_builder="self ubatch_id"),
    *methods("vllm.v1.attention.backend:AttentionMetadataBuilder", build="self common_prefix_len common_attn_metadata"),
    *methods(_METADATA, replace="self"),
    *attributes(
        _METADATA,
        "query_start_loc query_start_loc_cpu seq_lens seq_lens_cpu_upper_bound num_reqs max_query_len "
        "block_table_tensor is_prefilling _num_computed_tokens_cache _token_to_req_indices_cache",
    ),
    *methods("vllm.config.speculative:SpeculativeConfig", use_eagle="self", use_eagle_block_drop="self"),
    *attributes("vllm.config.speculative:SpeculativeConfig", "method draft_model_config parallel_drafting"),
    *attributes("vllm.config.vllm:VllmConfig", "speculative_config num_prefill_lookahead_tokens use_v2_model_runner"),
    *attributes(
        "vllm.config.parallel:ParallelConfig",
        "use_ubatching data_parallel_size data_parallel_size_local local_engines_only",
    ),
    *methods("vllm.v1.engine.core:EngineCore", add_lora="self lora_request", preprocess_add_request="self request"),
    *attributes("vllm.v1.engine.core:EngineCore", "scheduler"),
    *methods(
        "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1", wait_for_layer_load="self layer_name"
    ),
    *methods("vllm.v1.engine.input_processor:InputProcessor", process_inputs="self request_id prompt params"),
    *attributes("vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory", "_registry"),
)

_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"

PASSES_V2: tuple[Seam, ...] = (
    *methods(_RUNNER_V2, prepare_inputs="self scheduler_output"),
    *methods(
        "vllm.v1.worker.gpu.model_states.default:DefaultModelState",
        prepare_attn="self input_batch cudagraph_mode block_tables slot_mappings attn_groups",
    ),
    *attributes(_RUNNER_V2, "req_states"),
    *attributes("vllm.v1.worker.gpu.states:RequestState", "all_token_ids"),
    *attributes(
        "vllm.v1.worker.gpu.input_batch:InputBatch",
        "req_ids num_reqs idx_mapping_np num_scheduled_tokens seq_lens_cpu_upper_bound positions input_ids",
    ),
)
"""Model runner V2's, for holes in one pass. Where one does not fit, each hole takes a step of its own there."""
