"""The answer of a chat in Anthropic's form: vLLM's conversion, and the fields that it knows nothing of.

    chat     {text} {acm: tool} {text} {finish_reason, acm, context_management} {usage} [DONE]
    client   content_block_delta   ping + acm   content_block_delta   message_delta + acm, context_management

What a tool loop tells between its steps comes in pings, which every client of the vendor passes over.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.http.vendor_errors import anthropic_error
from acmserve.server.options.context_management import FIELD
from acmserve.server.vllm.handlers import with_sse_keep_alive
from acmserve.server.vllm.messages import message, message_events, payload_of

OURS = ("acm", FIELD)
_OWN_HEADERS = ("content-length", "content-type")


def to_message_answer(response: Response | None, serving: Any, keep_alive_seconds: float = 0) -> Response | None:
    """The answer of /v1/messages. Errors pass as they are, and so does None: the client has gone."""
    if response is None or response.status_code != 200:
        return response
    headers = {name: value for name, value in response.headers.items() if name not in _OWN_HEADERS}
    if isinstance(response, StreamingResponse):
        events = with_sse_keep_alive(_stream(response.body_iterator, serving, CURRENT.get()), keep_alive_seconds)
        return StreamingResponse(
            events, headers=headers, media_type="text/event-stream", background=response.background
        )
    body = json.loads(bytes(response.body))
    fields = message(serving, body) | {name: body[name] for name in OURS if name in body}
    return JSONResponse(fields, headers=headers, background=response.background)


@dataclass(slots=True)
class _ChatStream:
    """The stream of a chat as the conversion takes it. What it does not take is kept: `fields`, `told`, `error`."""

    events: AsyncIterator[Any]
    fields: dict[str, Any] = field(default_factory=dict)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None

    async def data(self) -> AsyncGenerator[str, None]:
        async for event in self.events:
            payload = payload_of(event)
            if payload is None:
                if event.startswith("data: [DONE]"):
                    yield event
            elif "error" in payload:
                self.error = payload
                return
            elif "event" in (payload.get("acm") or {}):
                self.receipts.append(payload["acm"])
            else:
                self.fields |= {name: payload[name] for name in OURS if name in payload}
                yield event


async def _stream(events: Any, serving: Any, exchange: Exchange | None) -> AsyncGenerator[str, None]:
    """The events. The first has the receipt, too, as far as it is known: the vendor's client keeps that one."""
    chat, is_first = _ChatStream(events), True
    async with aclosing(events), aclosing(message_events(serving, chat.data())) as converted:
        async for event in converted:
            if chat.error is not None:
                break
            while chat.receipts:
                yield _written({"type": "ping", "acm": chat.receipts.pop(0)})
            known = chat.fields.get("acm") or (exchange.acm if exchange is not None and is_first else None)
            yield _joined(event, chat.fields, known)
            is_first = False
    if chat.error is not None:
        yield _written(anthropic_error(500, chat.error) | {n: chat.error[n] for n in OURS if n in chat.error})


def _joined(event: str, fields: Mapping[str, Any], acm: Mapping[str, Any] | None) -> str:
    """An event of vLLM's with our fields, if it is the first or the one that ends the answer."""
    payload = payload_of(event) if fields or acm else None
    if payload is None or payload.get("type") not in ("message_start", "message_delta"):
        return event
    if payload["type"] == "message_delta":
        return _written({**payload, **fields})
    return _written({**payload, "message": {**payload["message"], "acm": acm}} if acm else payload)


def _written(event: Mapping[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"
