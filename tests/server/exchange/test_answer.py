"""Receipts joined to rendered answers, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from acmserve.plan.request import SessionParams
from acmserve.server.exchange.answer import join_event, stream_with_receipt
from acmserve.server.exchange.delivery import join_body
from acmserve.server.exchange.exchange import Exchange

ACM = {"session_id": "s", "receipt": {"fidelity": "exact", "prompt_tokens": 3}}
DONE = "data: [DONE]\n\n"


def sse(payload: dict[str, Any], event: str | None = None) -> str:
    head = "" if event is None else f"event: {event}\n"
    return f"{head}data: {json.dumps(payload, ensure_ascii=False)}\n\n"


def chunk(text: str, finish_reason: str | None = None) -> str:
    return sse({"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]})


def data_of(event: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(event.partition("data: ")[2])
    return parsed


@pytest.mark.parametrize(
    "event",
    [
        DONE,
        ": keep-alive\n\n",
        chunk("data: {}"),
        sse({"id": "c", "choices": []}),
        sse({"error": {"message": "lost", "code": 500}}),
        sse({"type": "response.in_progress", "response": {"id": "r"}}, "response.in_progress"),
        sse({"type": "message_stop"}, "message_stop"),
    ],
)
def test_events_that_do_not_end_an_answer_are_left(event: str) -> None:
    assert join_event(event, ACM) is None


def test_chat_chunk_with_finish_reason_takes_the_receipt() -> None:
    joined = join_event(chunk("Grüße", "stop"), ACM)
    assert joined is not None
    assert data_of(joined) == data_of(chunk("Grüße", "stop")) | {"acm": ACM}
    assert joined.endswith("}\n\n")
    assert "Grüße" in joined


def test_the_chunk_with_the_usage_alone_takes_the_receipt() -> None:
    event = sse({"id": "c", "choices": [], "usage": {"total_tokens": 3}})
    joined = join_event(event, ACM)
    assert joined is not None
    assert data_of(joined) == data_of(event) | {"acm": ACM}


def test_anthropics_first_event_takes_what_is_known_inside_its_message() -> None:
    event = sse({"type": "message_start", "message": {"id": "m"}}, "message_start")
    joined = join_event(event, ACM)
    assert joined is not None
    assert joined.startswith("event: message_start\n")
    assert data_of(joined)["message"] == {"id": "m", "acm": ACM}


def test_responses_event_takes_the_receipt_inside_its_response() -> None:
    event = sse({"type": "response.completed", "response": {"id": "r"}}, "response.completed")
    joined = join_event(event, ACM)
    assert joined is not None
    assert joined.startswith("event: response.completed\n")
    assert data_of(joined)["response"] == {"id": "r", "acm": ACM}


def test_anthropic_event_takes_the_receipt_beside_its_delta() -> None:
    event = sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, "message_delta")
    joined = join_event(event, ACM)
    assert joined is not None
    assert joined.startswith("event: message_delta\n")
    assert data_of(joined)["acm"] == ACM


def test_body_takes_the_receipt_at_top_level() -> None:
    assert join_body(b'{"id": "c", "choices": []}', ACM) == {"id": "c", "choices": [], "acm": ACM}


def test_stream_is_passed_on_event_by_event_and_only_its_end_is_changed() -> None:
    exchange = Exchange(SessionParams("s"))
    log: list[str] = []
    usage = sse({"id": "c", "choices": [], "usage": {"total_tokens": 3}})

    async def engine() -> AsyncIterator[str]:
        for text in ("a", "b"):
            log.append(f"made {text}")
            yield chunk(text)
        exchange.acm, exchange.finished = ACM, True
        yield chunk("c", "stop")
        yield usage
        yield DONE

    async def read() -> list[str]:
        events = []
        async for event in stream_with_receipt(engine(), exchange):
            log.append("read")
            events.append(event)
        return events

    events = asyncio.run(read())
    assert log[:4] == ["made a", "read", "made b", "read"]
    assert events[:2] == [chunk("a"), chunk("b")]
    assert data_of(events[2])["acm"] == ACM
    assert data_of(events[3]) == data_of(usage) | {"acm": ACM}
    assert events[4:] == [DONE]


def test_stream_without_receipt_is_unchanged() -> None:
    async def engine() -> AsyncIterator[str]:
        for event in (chunk("a", "stop"), DONE):
            yield event

    async def read() -> list[str]:
        return [event async for event in stream_with_receipt(engine(), Exchange(SessionParams("s")))]

    assert asyncio.run(read()) == [chunk("a", "stop"), DONE]
