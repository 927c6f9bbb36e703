"""A summary behind a request's own messages: what the model is asked, whatever the client wants of its own answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from acmserve.server.messages.live_summary import ask_behind
from acmserve.server.vllm.handlers import AnthropicMessagesRequest, AnthropicMessagesResponse, ChatCompletionRequest
from acmserve.server.vllm.messages import chat_request

TALK = [{"role": "user", "content": "Who wrote it?"}]
SCHEMA = {"type": "object", "properties": {"author": {"type": "string"}}, "required": ["author"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


class Handler:
    """vLLM's handler of /v1/messages, which keeps the chat that a request becomes."""

    def __init__(self) -> None:
        self.chats: list[ChatCompletionRequest] = []

    async def create_messages(self, request: AnthropicMessagesRequest) -> AnthropicMessagesResponse:
        self.chats.append(await chat_request(None, request))
        usage = {"input_tokens": 3, "output_tokens": 2}
        content = [{"type": "text", "text": "They talked."}]
        return AnthropicMessagesResponse(id="msg_1", model="m", content=content, usage=usage)


@pytest.mark.parametrize(
    ("config", "effort"),
    [
        ({"format": FORMAT}, None),
        ({"format": FORMAT, "effort": "low"}, "low"),
        ({"effort": "high"}, "high"),
        (None, None),
    ],
)
def test_the_schema_of_the_clients_answer_binds_no_summary(config: dict[str, Any] | None, effort: str | None) -> None:
    handler = Handler()
    request = AnthropicMessagesRequest.model_validate(
        {"model": "m", "max_tokens": 5, "messages": TALK, "output_config": config}
    )
    before = request.model_dump()
    summary = asyncio.run(ask_behind(handler, request, TALK, "Sum it up.", 50))
    assert (summary.text, summary.input_tokens, summary.output_tokens) == ("They talked.", 3, 2)
    (chat,) = handler.chats
    assert chat.response_format is None
    assert chat.reasoning_effort == effort
    assert chat.messages[-1]["content"] == "Who wrote it?\n\nSum it up."
    assert request.model_dump() == before
