"""A chat's answer in Anthropic's form: what vLLM does not convert is kept, and a stream that fails says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.server.messages.from_chat import to_message_answer

SERVING = SimpleNamespace(stop_reason_map={"stop": "end_turn"})
"""All of vLLM's handler that a conversion looks at. vLLM 0.31 finds reasons there, later ones look at nothing."""
HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def chunk(delta: dict[str, Any] | None, **more: Any) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}]
    return f"data: {json.dumps({**HEAD, 'choices': choices, 'usage': USAGE, **more})}\n\n"


def streamed(*events: str) -> list[dict[str, Any]]:
    closed: list[bool] = []

    async def given() -> AsyncIterator[str]:
        try:
            for event in events:
                yield event
        finally:
            closed.append(True)

    async def read() -> list[dict[str, Any]]:
        answer = to_message_answer(StreamingResponse(given(), headers={"X-ACM-Receipt": "s"}), SERVING)
        assert isinstance(answer, StreamingResponse)
        assert answer.headers["x-acm-receipt"] == "s"
        return [json.loads(str(event).partition("data: ")[2]) async for event in answer.body_iterator]

    read_events = asyncio.run(read())
    assert closed == [True]
    return read_events


def test_a_stream_keeps_our_fields_and_tells_operations_in_pings() -> None:
    events = streamed(
        chunk({"role": "assistant", "content": ""}),
        ": keep-alive\n\n",
        chunk({"reasoning": "Hm."}),
        chunk({}, acm={"event": "tool", "step": 0}),
        chunk({"content": "He"}),
        chunk({}, finish_reason="stop", acm={"session_id": "s"}, context_management={"applied_edits": []}),
        chunk(None),
        "data: [DONE]\n\n",
    )
    kinds = [event["type"] for event in events]
    assert kinds.count("ping") == 1
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert [event["acm"] for event in events if event["type"] == "ping"] == [{"event": "tool", "step": 0}]
    assert [event["content_block"]["type"] for event in events if "content_block" in event] == ["thinking", "text"]
    assert events[-2]["acm"] == {"session_id": "s"}
    assert events[-2]["context_management"] == {"applied_edits": []}
    assert events[-2]["usage"]["input_tokens"] == 7
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


def test_a_stream_that_fails_ends_with_the_vendors_error() -> None:
    failed = f"data: {json.dumps({'error': {'message': 'The engine died.', 'type': 'x', 'code': 500}})}\n\n"
    events = streamed(chunk({"role": "assistant", "content": ""}), chunk({"content": "He"}), failed, "data: [DONE]\n\n")
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["error"]["message"] == "The engine died."
    assert "message_stop" not in [event["type"] for event in events]


def test_a_whole_answer_keeps_our_fields_and_its_headers() -> None:
    message = {"role": "assistant", "content": "Hi.", "reasoning": "Hm."}
    body = {**HEAD, "object": "chat.completion", "usage": USAGE, "acm": {"session_id": "s"}}
    body |= {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    answer = to_message_answer(JSONResponse(body, headers={"X-ACM-Receipt": "r"}), SERVING)
    assert isinstance(answer, Response)
    told = json.loads(bytes(answer.body))
    assert [block["type"] for block in told["content"]] == ["thinking", "text"]
    assert told["acm"] == {"session_id": "s"}
    assert answer.headers["x-acm-receipt"] == "r"
    assert to_message_answer(None, None) is None
    refused = JSONResponse({"error": {}}, 400)
    assert to_message_answer(refused, None) is refused
