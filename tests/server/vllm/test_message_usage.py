"""The first chunk of a stream has the cached tokens, as text and, from vLLM 0.33 on, as an object."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from acmserve.server.vllm.handlers import ChatCompletionStreamResponse
from acmserve.server.vllm.message_usage import RAW_CHUNKS, start_with_cached_tokens

CHUNK: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
USAGE = {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}
OUTPUT = SimpleNamespace(num_cached_tokens=5, num_cache_creation_tokens=None)


class Messages:
    """A handler of messages. As text or as objects, each of its chunks has the same usage."""

    enable_prompt_tokens_details = True

    def __init__(self, *, is_text: bool) -> None:
        body = CHUNK | {"usage": USAGE}
        self.chunk: Any = f"data: {json.dumps(body)}\n\n" if is_text else None

        async def generate(request: Any, outputs: Any) -> AsyncGenerator[Any, None]:
            async for _ in outputs:
                yield self.chunk or ChatCompletionStreamResponse.model_validate(body)

        setattr(self, "chat_completion_stream_generator" if is_text else RAW_CHUNKS, generate)


async def _outputs() -> AsyncGenerator[Any, None]:
    for _ in range(2):
        yield OUTPUT


async def _chunks(messages: Any, name: str) -> list[dict[str, Any]]:
    found = [chunk async for chunk in getattr(messages, name)(None, _outputs())]
    texts = [c.partition("data: ")[2] if isinstance(c, str) else c.model_dump_json(exclude_unset=True) for c in found]
    return [json.loads(text) for text in texts]


@pytest.mark.parametrize("is_text", [True, False])
def test_the_first_chunk_alone_tells_them(is_text: bool) -> None:
    messages = Messages(is_text=is_text)
    name = "chat_completion_stream_generator" if is_text else RAW_CHUNKS
    before = asyncio.run(_chunks(messages, name))
    start_with_cached_tokens(messages)
    first, second = asyncio.run(_chunks(messages, name))
    assert before == [second, second], "the control: vLLM tells nothing there"
    assert first == second | {"usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 5}}}
