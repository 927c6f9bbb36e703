"""A chat's stream as events of a response, without an engine: what comes between, what fails, what stands in front."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from acmserve.server.responses.answer import Asked
from acmserve.server.responses.compaction_item import compaction_item
from acmserve.server.responses.stream import response_events
from acmserve.server.vllm.responses import ResponsesRequest

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}}
SERVING = SimpleNamespace(model_config=SimpleNamespace(max_model_len=100), default_sampling_params={})


def chunk(delta: dict[str, Any] | None, **more: Any) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}]
    return f"data: {json.dumps({**HEAD, 'choices': choices, 'usage': USAGE, **more})}\n\n"


def streamed(*events: str, before: tuple[dict[str, Any], ...] = ()) -> list[dict[str, Any]]:
    async def given() -> AsyncIterator[str]:
        for event in events:
            yield event

    async def read() -> list[dict[str, Any]]:
        asked = Asked(ResponsesRequest(model="m", input="x"), SERVING, before)
        return [json.loads(event.partition("data: ")[2]) async for event in response_events(asked, given())]

    return asyncio.run(read())


def test_events_are_numbered_and_the_last_one_has_everything() -> None:
    item = compaction_item("S.", [], covers_all=True)
    events = streamed(
        chunk({"role": "assistant", "content": ""}),
        ": keep-alive\n\n",
        chunk({"reasoning": "Hm."}),
        chunk({}, acm={"event": "tool", "step": 0}),
        chunk({"content": "He"}),
        chunk({"content": "llo"}),
        chunk({}, finish_reason="stop", acm={"session_id": "s"}),
        chunk(None),
        "data: [DONE]\n\n",
        before=(item,),
    )
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.done"] == [0, 1, 2]
    [told] = [event for event in events if "acm" in event]
    assert (told["type"], told["acm"]) == ("response.in_progress", {"event": "tool", "step": 0})
    ended = events[-1]["response"]
    assert [item["type"] for item in ended["output"]] == ["compaction", "reasoning", "message"]
    assert ended["output"][2]["content"][0]["text"] == "Hello"
    assert (ended["status"], ended["acm"]) == ("completed", {"session_id": "s"})
    assert ended["usage"]["input_tokens_details"]["cached_tokens"] == 5
    assert events[0]["response"]["max_output_tokens"] == 93


def test_a_stream_that_fails_ends_with_that() -> None:
    failed = f"data: {json.dumps({'error': {'message': 'The engine died.', 'code': 500}, 'acm': {'steps': []}})}\n\n"
    events = streamed(chunk({"role": "assistant"}), chunk({"content": "He"}), failed, "data: [DONE]\n\n")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "The engine died."}
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["acm"] == {"steps": []}
    assert streamed(failed)[-1]["type"] == "response.failed"
