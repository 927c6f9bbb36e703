"""A streamed chat request with the server's tool loop, as a client reads it that measures: what came, and when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from acmserve.bench.harness.run_log import RUN

_SECONDS = 7200.0
"""Without a byte. The last of sixteen long openings that are sent at once waits for all others on a slow CPU."""


@dataclass(slots=True)
class StreamReply:
    """`message` is what the client keeps. `steps` are the completions, each with the receipt of its prompt.

    `seconds` to the first token of each completion: from the request, or from the last thing that was carried out.
    `cleared_tokens` is what `context_management` has taken out of the conversation by now. `usage` is the server's,
    where it was asked for, `receipt` that of the last prompt. `first_seconds` go to the first token of all.
    """

    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": ""})
    steps: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cleared_tokens: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    receipt: dict[str, Any] = field(default_factory=dict)
    first_seconds: float = 0.0


def stream_chat(url: str, body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
    """The chunks of an answer, each with the time it came at. Raises RuntimeError with the server's words."""
    begun, first = time.monotonic(), None
    receipt: dict[str, Any] = {}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=_SECONDS) as response:
        if response.status_code != 200:
            raise RuntimeError(f"HTTP {response.status_code}: {response.read().decode()[:500]}")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(f"the stream failed: {chunk['error']}")
                now = time.monotonic()
                if first is None and any(map(has_token, chunk.get("choices") or ())):
                    first = now
                receipt = (chunk.get("acm") or {}).get("receipt") or receipt
                yield chunk, now
    RUN.answered(None if first is None else first - begun, receipt, server=url, session_id=body.get("session_id"))


def has_token(choice: dict[str, Any]) -> bool:
    """Whether a choice of a chunk has something of the answer, or its end."""
    return bool(choice.get("token_ids") or choice.get("finish_reason") or (choice.get("delta") or {}).get("content"))


def ask(url: str, body: dict[str, Any]) -> StreamReply:
    """Put the chunks of an answer together. A completion that shows nothing has the time of its end."""
    reply = StreamReply()
    since, first = time.monotonic(), None
    begun = since
    for chunk, now in stream_chat(url, body | {"stream": True}):
        acm = chunk.get("acm") or {}
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        if first is None and (delta.get("content") or delta.get("tool_calls")):
            first = now
            reply.first_seconds = reply.first_seconds or now - begun
        reply.message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            reply.message.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
        if acm.get("event") == "receipt":
            reply.seconds.append((now if first is None else first) - since)
            since, first = now, None
        elif acm.get("event") == "tool":
            since, first = now, None
        reply.steps = acm.get("steps", reply.steps)
        reply.usage = chunk.get("usage") or reply.usage
        reply.receipt = acm.get("receipt") or reply.receipt
        if "context_management" in chunk:
            applied = chunk["context_management"]["applied_edits"]
            reply.cleared_tokens = sum(edit["cleared_input_tokens"] for edit in applied)
    return reply
