"""Puts `acm` (session id and receipt) into a stream of server-sent events that vLLM has rendered.

    vLLM's stream    data: {.. "content": "He"}   data: {.. "finish_reason": "stop"}   data: {"choices": [], "usage"}
                         |  untouched text            |  parsed, + "acm"                   |  parsed, + "acm"
    client's stream  data: {.. "content": "He"}   data: {.. "finish_reason": "stop",   data: {"choices": [], "usage",
                                                            "acm": {...}}                     "acm": {...}}

Decision: the receipt joins the event that ends the answer instead of coming in an event of its own. An event without
choices makes clients fail that read `choices[0]` of every chunk. Official clients keep unknown fields of known events.
A client that asked for the usage gets an event without choices behind the end. It has `acm`, too: some clients stop at
the finish reason, and others read the last chunk. Anthropic's client keeps of unknown fields those of `message_start`
alone, so that event has the receipt as far as it is known then.
Nothing is held back: an event is looked into only if it is the first, or once the engine has finished.

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
    """Yield `events`, the receipt of `exchange` joined to those that end the answer, and to Anthropic's first."""
    is_first = True
    async for event in events:
        acm = exchange.acm
        joined = join_event(event, acm) if acm is not None and (exchange.finished or is_first) else None
        is_first = False
        yield event if joined is None else joined


async def stream_with_field(events: AsyncIterator[str], name: str, value: dict[str, Any]) -> AsyncIterator[str]:
    """Yield `events`, `name: value` joined to those that end an answer. Only these are parsed."""
    async for event in events:
        joined = join_event(event, value, name) if any(mark in event for mark in _END_MARKS) else None
        yield event if joined is None else joined


def join_event(event: str, value: dict[str, Any], name: str = "acm") -> str | None:
    """Return the server-sent event with `name: value` in it, or None when it is none that takes it."""
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
    """Return the object of an event that takes the receipt, else None.

    Chat and text completions: the chunk with a finish reason, and the one with the usage alone. Responses: the response
    inside the closing event. Anthropic messages: `message_delta`, which vLLM sends once, with the stop reason, and the
    message inside `message_start`.
    """
    choices = payload.get("choices")
    if any(choice.get("finish_reason") for choice in choices or ()) or (choices == [] and payload.get("usage")):
        return payload
    kind = payload.get("type")
    if kind == "message_start":
        message: dict[str, Any] = payload["message"]
        return message
    if kind in _RESPONSE_ENDS and isinstance(payload.get("response"), dict):
        response: dict[str, Any] = payload["response"]
        return response
    return payload if kind == "message_delta" else None
