"""vLLM's own conversion between Anthropic's protocol and chats, as the sessions use it.

    Anthropic request --chat_request--> chat request         chat answer --message/message_events--> Anthropic answer

vLLM's handler does all three in one function. Here they stand apart, so that a session can act on the chat in between.
Decision: an inline system message is never merged into the system text here. Whoever calls has to place it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

from acmserve.server.vllm.handlers import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    ErrorResponse,
)
from acmserve.server.vllm.message_usage import RAW_CHUNKS

DISABLED = "none"
AsServed = Callable[[Sequence[int]], list[int]]


async def chat_request(
    serving: Any, request: AnthropicMessagesRequest | AnthropicCountTokensRequest
) -> ChatCompletionRequest:
    """The chat that asks for the same answer. `serving` is vLLM's handler of messages."""
    effort: Any = DISABLED
    if request.thinking is not None and request.thinking.type == "disabled":
        effort = await _disabled_thinking_effort(serving, request)
    converted: ChatCompletionRequest = AnthropicServingMessages.to_chat_completion_request(
        request, merge_inline_system=False, disabled_thinking_effort=effort
    )
    return converted


async def _disabled_thinking_effort(serving: Any, request: Any) -> str:
    """What the renderer takes for no thinking. vLLM 0.33 has an object that finds it."""
    resolver = getattr(serving, "disabled_thinking_effort_resolver", None)
    found = serving._get_disabled_thinking_effort() if resolver is None else resolver.resolve_for(request)
    return str(await found)


def message(serving: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    """A whole chat answer in Anthropic's form."""
    answer = ChatCompletionResponse.model_validate(body)
    converted = AnthropicServingMessages.messages_full_converter(serving, answer)
    fields: dict[str, Any] = converted.model_dump(exclude_none=True)
    return fields


def message_events(serving: Any, events: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """The stream of a chat answer as Anthropic's events. `events` may hold nothing but data."""
    source: AsyncIterator[Any] = _chunks(events) if hasattr(AnthropicServingMessages, RAW_CHUNKS) else events
    converted: AsyncGenerator[str, None] = AnthropicServingMessages.message_stream_converter(serving, source)
    return converted


async def _chunks(events: AsyncIterator[str]) -> AsyncGenerator[Any, None]:
    """The same as objects and without the mark of its end, as vLLM 0.33 converts it."""
    async for event in events:
        payload = payload_of(event)
        if payload is not None:
            yield ChatCompletionStreamResponse.model_validate(payload)


async def count_prompt(serving: Any, request: ChatCompletionRequest, as_served: AsServed = list) -> int | JSONResponse:
    """Tokens of the prompt that vLLM renders for a chat, or the error that it gives instead.

    `as_served` makes the tokens that the engine would get of those that were rendered.
    """
    rendered = await serving.render_chat_request(request)
    if isinstance(rendered, ErrorResponse):
        return JSONResponse(rendered.model_dump(), rendered.error.code)
    _, prompts = rendered
    given = (prompt["prompt_token_ids"] for prompt in prompts if "prompt_token_ids" in prompt)
    return sum(len(as_served(token_ids)) for token_ids in given)


def payload_of(event: str) -> dict[str, Any] | None:
    """The JSON of a server-sent event. None for a comment, and for the end of a stream."""
    data = event.partition("data: ")[2]
    payload: dict[str, Any] | None = json.loads(data) if data.startswith("{") else None
    return payload
