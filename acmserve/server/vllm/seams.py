"""Every part of vLLM's HTTP side that the server relies on beyond what vLLM documents, as a table, and its check."""

from __future__ import annotations

from acmserve.errors import EngineMismatch
from acmserve.seams import Seam, attributes, broken_seams, methods

_CHAT = "vllm.entrypoints.openai.chat_completion"
_ANTHROPIC = "vllm.entrypoints.anthropic"
_RENDERER = "vllm.renderers.online_renderer"
_RESPONSES = "vllm.entrypoints.openai.responses"
_CLIENT = "vllm.v1.engine.async_llm:AsyncLLM"

CHAT_TEMPLATE = Seam(
    "vllm.renderers.chat_utils:load_chat_template",
    ("chat_template",),
    elsewhere=("vllm.entrypoints.chat_utils:load_chat_template",),
)
"""The second place is of vLLM 0.31."""
ARG_PARSER = Seam(
    "vllm.entrypoints.launchers.cli_args:make_arg_parser",
    ("parser",),
    elsewhere=("vllm.entrypoints.common.cli_args:make_arg_parser",),
)
"""The second place is of vLLM 0.33."""
CLI_ENVIRONMENT = Seam(
    "vllm.entrypoints.serve.utils.api_utils:cli_env_setup",
    elsewhere=("vllm.entrypoints.common.startup:cli_env_setup",),
)
"""The second place is of vLLM 0.33."""

SEAMS: tuple[Seam, ...] = (
    *methods(
        _CLIENT,
        generate="self prompt sampling_params request_id",
        get_num_unfinished_requests="self",
        collective_rpc="self method",
    ),
    *attributes(_CLIENT, "renderer model_config vllm_config"),
    Seam("vllm.config.model:ModelConfig.hf_text_config"),
    *methods(
        f"{_CHAT}.serving:OpenAIServingChat",
        create_chat_completion="self request raw_request",
        render_chat_request="self request",
        chat_completion_stream_generator="self request result_generator",
    ),
    *attributes(f"{_CHAT}.serving:OpenAIServingChat", "enable_prompt_tokens_details"),
    *methods("vllm.entrypoints.openai.models.serving:OpenAIServingModels", model_name="self lora_request"),
    *methods("vllm.renderers.base:BaseRenderer", _tokenize_singleton_prompt_async="self prompt params"),
    *attributes("vllm.renderers.base:BaseRenderer", "_tokenize_prompt_async"),
    *attributes("vllm.renderers.params:TokenizeParams", "max_total_tokens truncate_prompt_tokens"),
    *attributes("vllm.outputs:RequestOutput", "num_cached_tokens num_cache_creation_tokens kv_transfer_params metrics"),
    *attributes("vllm.v1.metrics.stats:RequestStateStats", "first_token_latency"),
    Seam("vllm.outputs:CompletionOutput", ("index", "text", "token_ids", "cumulative_logprob", "logprobs")),
    Seam("vllm.v1.engine:EngineCoreRequest"),
    *methods(
        "vllm.v1.engine.detokenizer:IncrementalDetokenizer",
        from_new_request="tokenizer request",
        update="self new_token_ids stop_terminated",
        get_next_output_text="self finished delta",
    ),
    *attributes(
        "vllm.sampling_params:SamplingParams", "prompt_logprobs skip_reading_prefix_cache flat_logprobs output_kind"
    ),
    Seam(f"{_CHAT}.protocol:ChatCompletionRequest"),
    Seam(f"{_CHAT}.protocol:ChatCompletionResponse"),
    Seam(f"{_CHAT}.protocol:ChatCompletionStreamResponse"),
    Seam(f"{_ANTHROPIC}.protocol:AnthropicContentBlock"),
    Seam(f"{_ANTHROPIC}.protocol:AnthropicMessagesResponse"),
    Seam("vllm.entrypoints.openai.completion.protocol:CompletionResponse"),
    Seam("vllm.entrypoints.openai.responses.protocol:ResponsesResponse"),
    Seam(f"{_ANTHROPIC}.protocol:AnthropicMessage"),
    Seam(f"{_ANTHROPIC}.protocol:AnthropicMessagesRequest"),
    Seam(f"{_ANTHROPIC}.protocol:AnthropicCountTokensRequest"),
    Seam(f"{_ANTHROPIC}.api_router:count_tokens", ("request", "raw_request")),
    *methods(
        f"{_ANTHROPIC}.serving:AnthropicServingMessages",
        to_chat_completion_request="anthropic_request merge_inline_system disabled_thinking_effort",
        messages_full_converter="self generator",
        message_stream_converter="self generator",
        render_chat_request="self request",
    ),
    Seam(
        f"{_ANTHROPIC}.serving:AnthropicServingMessages._get_disabled_thinking_effort",
        ("self",),
        elsewhere=(f"{_ANTHROPIC}.serving:DisabledThinkingEffortResolver.resolve_for",),
    ),
    Seam(f"{_RESPONSES}.protocol:ResponsesRequest"),
    *methods(
        f"{_RESPONSES}.protocol:ResponsesRequest", to_sampling_params="self default_max_tokens default_sampling_params"
    ),
    *methods(
        f"{_RESPONSES}.protocol:ResponsesResponse",
        from_request="request sampling_params model_name created_time output status usage",
    ),
    *methods(
        f"{_RESPONSES}.streaming_events:SimpleStreamingEventProcessor",
        resolve_target_state="self delta_message",
        needs_transition="self target_state tool_call",
        close_current="self",
        open="self target_state tool_call",
        emit_delta="self delta_message output get_logprobs",
    ),
    *attributes(f"{_RESPONSES}.streaming_events:SimpleStreamingState", "output_index"),
    Seam(f"{_RESPONSES}.streaming_events:split_delta", ("delta",)),
    Seam(
        f"{_RESPONSES}.utils:build_response_output_items", ("reasoning", "content", "tool_calls", "logprobs", "tools")
    ),
    Seam(f"{_RESPONSES}.utils:construct_input_messages", ("request_instructions", "request_input")),
    Seam(f"{_RESPONSES}.utils:construct_tool_dicts", ("tools", "tool_choice")),
    Seam(f"{_RESPONSES}.utils:extract_tool_types", ("tools",)),
    Seam(f"{_RESPONSES}.utils:should_continue_final_message", ("request_input",)),
    *attributes(
        f"{_RESPONSES}.serving:OpenAIServingResponses",
        "use_harmony tool_server default_sampling_params",
    ),
    *attributes("vllm.entrypoints.serve.engine.serving:BaseServing", "model_config"),
    Seam("vllm.entrypoints.generate.base.protocol:DeltaMessage"),
    Seam("vllm.entrypoints.generate.base.protocol:FunctionCall"),
    Seam(f"{_CHAT}.api_router:create_chat_completion", ("request", "raw_request")),
    Seam("vllm.entrypoints.serve.exception_handling.error_response:create_error_response", ("message",)),
    Seam("vllm.entrypoints.serve.utils.sse_keep_alive:with_sse_keep_alive", ("generator",)),
    Seam("vllm.entrypoints.serve.utils.api_utils:with_cancellation", ("handler_func",)),
    CHAT_TEMPLATE,
    ARG_PARSER,
    CLI_ENVIRONMENT,
    Seam("vllm.utils.mistral:is_mistral_tokenizer", ("obj",)),
    *attributes(f"{_CHAT}.serving:OpenAIServingChat", "online_renderer"),
    *attributes(
        f"{_RENDERER}:OnlineRenderer",
        "renderer chat_template chat_template_content_format default_chat_template_kwargs use_harmony "
        "exclude_tools_when_tool_choice_none",
    ),
    *methods(f"{_RENDERER}:OnlineRenderer", _make_request_with_harmony="self request should_include_tools"),
    *methods("vllm.renderers.base:BaseRenderer", render_messages="self messages params"),
    *methods(f"{_CHAT}.protocol:ChatCompletionRequest", build_chat_params="self default_template"),
    Seam("vllm.entrypoints.serve.engine.protocol:ErrorResponse"),
    Seam("vllm.sampling_params:RequestOutputKind"),
    Seam("vllm.sampling_params:SamplingParams"),
    *attributes(
        "vllm.config.parallel:ParallelConfig",
        "data_parallel_size data_parallel_size_local local_engines_only _api_process_rank",
    ),
    Seam("vllm.v1.engine.exceptions:EngineDeadError"),
    Seam("vllm.exceptions:VLLMError"),
    Seam("vllm.exceptions:VLLMClientError"),
    Seam("vllm.exceptions:VLLMValidationError"),
    *attributes("starlette.routing:Router", "lifespan_context"),
    *attributes("fastapi.routing:APIRoute", "dependencies responses"),
)


def check_server() -> None:
    """Raise `EngineMismatch` naming every seam of the HTTP side that does not fit."""
    if broken := broken_seams(SEAMS):
        raise EngineMismatch(f"the HTTP side of this vLLM: {'; '.join(broken)}")
