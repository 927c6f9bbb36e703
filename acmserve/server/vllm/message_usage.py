"""The cached tokens of a stream of /v1/messages in its first event, too, where Anthropic's clients look for them first.

    engine outputs  --look at the first--> vLLM's chat stream  --first chunk, + prompt_tokens_details--> vLLM's events

vLLM answers /v1/messages by a chat stream of its own, and writes `usage` of `message_start` from the first chunk. That
chunk has no cached tokens: all of the prompt would be `input_tokens` at the start, and less at the end. The vendor's
rule, input_tokens + cache_read_input_tokens + cache_creation_input_tokens = prompt, is kept by vLLM's own arithmetic.

vLLM 0.33 makes chunks as objects first, and text or Anthropic's events of them afterwards. There the object is changed.

Does not know sessions: the counts are those of the engine's output.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

RAW_CHUNKS = "chat_completion_stream_generator_raw"
"""What makes the chunks of a stream as objects. Only vLLM 0.33 has it."""
_TEXT_CHUNKS = "chat_completion_stream_generator"


class FirstOutput:
    """Remembers what the first output of the engine says of the cache."""

    def __init__(self) -> None:
        self.details: dict[str, int] = {}

    async def watch(self, outputs: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Pass the outputs on."""
        is_first = True
        async with aclosing(outputs):
            async for output in outputs:
                if is_first:
                    is_first = False
                    counts = {
                        "cached_tokens": output.num_cached_tokens,
                        "created_cache_tokens": output.num_cache_creation_tokens,
                    }
                    self.details = {name: count for name, count in counts.items() if count is not None}
                yield output


def start_with_cached_tokens(messages_handler: Any) -> None:
    """Have the chat streams of vLLM's handler of /v1/messages begin with the cached tokens, where it reports them."""
    if messages_handler is None or not messages_handler.enable_prompt_tokens_details:
        return
    name = RAW_CHUNKS if hasattr(messages_handler, RAW_CHUNKS) else _TEXT_CHUNKS
    generate = getattr(messages_handler, name)

    async def generate_counted(request: Any, outputs: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        first = FirstOutput()
        async with aclosing(generate(request, first.watch(outputs), *args, **kwargs)) as events:
            async for event in _with_details(events, first):
                yield event

    vars(messages_handler)[name] = generate_counted


async def _with_details(chunks: AsyncIterator[Any], first: FirstOutput) -> AsyncIterator[Any]:
    is_first = True
    async for chunk in chunks:
        add = add_details if isinstance(chunk, str) else with_details
        yield add(chunk, first.details) if is_first else chunk
        is_first = False


def with_details(chunk: Any, details: dict[str, int]) -> Any:
    """The first chunk as an object. What has no usage, as an error has none, stays as it is."""
    usage = getattr(chunk, "usage", None)
    if usage is not None and details:
        told = {**usage.model_dump(exclude_unset=True), "prompt_tokens_details": details}
        chunk.usage = type(usage).model_validate(told)
    return chunk


def add_details(event: str, details: dict[str, int]) -> str:
    """The first chunk of a chat stream with the cached tokens in its usage. An event without usage stays as it is."""
    _, mark, data = event.partition("data: ")
    payload = json.loads(data) if mark and data.startswith("{") else {}
    if not details or not payload.get("usage"):
        return event
    payload["usage"]["prompt_tokens_details"] = details
    return f"data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n"
