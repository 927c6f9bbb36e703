"""Adds a compaction block to an answer of /v1/messages: as the first block of its JSON, or to its stream.

    vLLM's stream    message_start                        block 0 ...  message_delta + usage
    client's stream  message_start  block 0 (compaction)  block 1 ...  message_delta + usage.iterations

The block comes whole, in one delta. With a pause there is no answer of vLLM's, and the message is made here. What the
vendor has as opaque metadata of the block names the session. So a client without an id is found by it, whatever else
it drops.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.context.anthropic.compaction_blocks import compaction_block
from acmserve.server.options.compaction_content import CONTENT, write_content

STOP_REASON = "compaction"
_COUNTERS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What the answer says of a compaction. `summary` is None where none could be written, for this `reason`.

    `cached_tokens` were kept or moved, as far as a receipt says so, and are not among the input, as the vendor counts.
    `session_id` is the session that was compacted, None for a request without one.
    """

    summary: str | None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reason: str = ""
    session_id: str | None = None

    @property
    def block(self) -> dict[str, Any]:
        """The block that the client keeps."""
        return compaction_block(self.summary) | self.metadata

    @property
    def metadata(self) -> dict[str, Any]:
        """What names the session in the block. Nothing in one that stands for nothing."""
        if self.summary is None or self.session_id is None:
            return {}
        return {CONTENT: write_content({"session": self.session_id})}

    def iterations(self, usage: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """`usage.iterations`: the summary's, and that of the message where there is one."""
        own = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        own |= {"cache_read_input_tokens": self.cached_tokens}
        fields = [_iteration("compaction", own)]
        return fields if usage is None else [*fields, _iteration("message", usage)]


def _iteration(kind: str, usage: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind} | {counter: usage.get(counter) or 0 for counter in _COUNTERS}


def deliver_compaction(response: Response | None, compacted: Compacted) -> Response | None:
    """Put the block in front of an answer of vLLM's. Errors pass as they are."""
    if isinstance(response, StreamingResponse):
        response.body_iterator = _stream(response.body_iterator, compacted)
        return response
    if not isinstance(response, JSONResponse) or response.status_code != 200:
        return response
    body = json.loads(bytes(response.body))
    usage = body.get("usage") or {}
    body["content"] = [compacted.block, *body["content"]]
    body["usage"] = usage | {"iterations": compacted.iterations(usage)}
    kept = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
    return JSONResponse(body, headers=kept, background=response.background)


def paused_answer(model: str, compacted: Compacted, stream: bool) -> Response:
    """The answer that ends behind the block. Its own usage is nought, since no message was written."""
    message: dict[str, Any] = {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    end = {"stop_reason": STOP_REASON, "stop_sequence": None}
    usage = message["usage"] | {"iterations": compacted.iterations(None)}
    if not stream:
        return JSONResponse({**message, **end, "content": [compacted.block], "usage": usage})
    events = [
        {"type": "message_start", "message": message},
        *_block_events(compacted),
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]

    async def written() -> AsyncIterator[str]:
        for event in events:
            yield _written(event)

    return StreamingResponse(written(), media_type="text/event-stream")


async def _stream(events: AsyncIterator[Any], compacted: Compacted) -> AsyncIterator[str]:
    """vLLM's events with the block in front of the others."""
    async for event in events:
        payload = _payload(event)
        kind = payload.get("type")
        if kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            yield _written({**payload, "index": payload["index"] + 1})
        elif kind == "message_delta":
            usage = payload.get("usage") or {}
            yield _written({**payload, "usage": usage | {"iterations": compacted.iterations(usage)}})
        else:
            yield event
        if kind == "message_start":
            for added in _block_events(compacted):
                yield _written(added)


def _block_events(compacted: Compacted) -> list[dict[str, Any]]:
    delta = {"type": "compaction_delta", "content": compacted.summary} | compacted.metadata
    return [
        {"type": "content_block_start", "index": 0, "content_block": compaction_block(None)},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
    ]


def _payload(event: str) -> dict[str, Any]:
    data = event.partition("data: ")[2]
    payload: dict[str, Any] = json.loads(data) if data.startswith("{") else {}
    return payload


def _written(event: Mapping[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"
