"""Puts `acm` (session id and receipt) into a stream of server-sent events that vLLM has rendered.

    vLLM's stream    data: {.. "content": "He"}   data: {.. "finish_reason": "stop"}   data: [DONE]
                         |  untouched text            |  parsed, + "acm"                   |
    client's stream  data: {.. "content": "He"}   data: {.. "finish_reason": "stop",   data: [DONE]
                                                            "acm": {...}}

Decision: the receipt joins the event that ends the answer instead of coming in an event of its own. An event without
choices makes clients fail that read `choices[0]` of every chunk. Official clients keep unknown fields of known events.
Nothing is held back: an event is looked into only once the engine has finished, so of a whole stream one or two are.

It knows the events of four protocols by their finishing mark. It knows neither vLLM nor the web framework.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")
# As vLLM writes them. Inside a text the quotes would be escaped.
_END_MARKS = ('"type":"message_delta"', '"finish_reason":"')


class ReceiptSource(Protocol):
    """`acm` is the receipt, with `finished` there is no other to come."""

    acm: dict[str, Any] | None
    finished: bool


async def stream_with_receipt(events: AsyncIterator[str], exchange: ReceiptSource) -> AsyncIterator[str]:
    """Yield `events`, the receipt of `exchange` joined to the one that ends the answer."""
    pending = True
    async for event in events:
        if pending and exchange.finished and exchange.acm is not None:
            joined = join_event(event, exchange.acm)
            pending = joined is None
            yield event if joined is None else joined
        else:
            yield event


async def stream_with_field(events: AsyncIterator[str], name: str, value: dict[str, Any]) -> AsyncIterator[str]:
    """Yield `events`, `name: value` joined to those that end an answer. Only these are parsed."""
    async for event in events:
        joined = join_event(event, value, name) if any(mark in event for mark in _END_MARKS) else None
        yield event if joined is None else joined


def join_event(event: str, value: dict[str, Any], name: str = "acm") -> str | None:
    """Return the server-sent event with `name: value` in it, or None when it is not the one that ends an answer."""
    head, mark, data = event.partition("data: ")
    if not mark or not data.startswith("{"):
        return None
    payload = json.loads(data)
    end = find_end(payload)
    if end is None:
        return None
    end[name] = value
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"{head}data: {text}\n\n"


def find_end(payload: dict[str, Any]) -> dict[str, Any] | None:
    """Return the object of an event that takes the receipt when the event ends the answer, else None.

    Chat and text completions: the chunk with a finish reason. Responses: the response inside the closing event.
    Anthropic messages: `message_delta`, which vLLM sends once, with the stop reason.
    """
    if any(choice.get("finish_reason") for choice in payload.get("choices") or ()):
        return payload
    kind = payload.get("type")
    if kind in _RESPONSE_ENDS and isinstance(payload.get("response"), dict):
        response: dict[str, Any] = payload["response"]
        return response
    return payload if kind == "message_delta" else None
