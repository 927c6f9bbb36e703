"""vLLM's request types, handlers and errors, as the server's rooms import them.

Nothing else in the server names a module of vLLM's HTTP side, so a version that moves one is met here.
"""

from vllm.entrypoints.anthropic.api_router import count_tokens as count_tokens
from vllm.entrypoints.anthropic.protocol import AnthropicContentBlock as AnthropicContentBlock
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest as AnthropicCountTokensRequest
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensResponse as AnthropicCountTokensResponse
from vllm.entrypoints.anthropic.protocol import AnthropicMessage as AnthropicMessage
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest as AnthropicMessagesRequest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesResponse as AnthropicMessagesResponse
from vllm.entrypoints.anthropic.protocol import AnthropicToolChoice as AnthropicToolChoice
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest as ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse as ChatCompletionResponse
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionStreamResponse as ChatCompletionStreamResponse,
)
from vllm.entrypoints.openai.completion.protocol import CompletionResponse as CompletionResponse
from vllm.entrypoints.openai.responses.protocol import ResponsesResponse as ResponsesResponse
from vllm.entrypoints.serve.engine.protocol import ErrorResponse as ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response as create_error_response
from vllm.entrypoints.serve.utils.api_utils import with_cancellation as with_cancellation
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive as with_sse_keep_alive
from vllm.exceptions import VLLMClientError as VLLMClientError
from vllm.exceptions import VLLMError as VLLMError
from vllm.exceptions import VLLMValidationError as VLLMValidationError
from vllm.sampling_params import RequestOutputKind as RequestOutputKind
from vllm.sampling_params import SamplingParams as SamplingParams

from acmserve.seams import load
from acmserve.server.vllm.seams import CHAT_TEMPLATE

load_chat_template = load(CHAT_TEMPLATE)
