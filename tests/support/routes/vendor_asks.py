"""One question to each of the four answering routes by the vendor's own client, and what it has of the receipt.

texts --official client--> route --> Seen: prompt and cached tokens by the vendor's rule, `acm` where it was found
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

from tests.support.server.scripted_server import MODEL

MAX_TOKENS = 4


@dataclass
class Seen:
    """`acms` are all that the client's objects had, in order. `starts` is the usage that a stream began with."""

    prompt: int
    cached: int
    headers: Any
    acms: list[Any]
    usage: Any
    model: str
    starts: Any = None
    last: Any = None
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Clients:
    """Both official clients of one server."""

    openai: openai.OpenAI
    anthropic: anthropic.Anthropic


def _messages(texts: Sequence[str]) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


def ask_chat(clients: Clients, texts: Sequence[str], body: dict[str, Any], *, stream: bool, model: str = MODEL) -> Seen:
    create: Any = clients.openai.chat.completions.with_raw_response.create
    asked: dict[str, Any] = {"model": model, "messages": _messages(texts), "max_tokens": MAX_TOKENS, "extra_body": body}
    return _openai(create, asked, stream)


def ask_completions(
    clients: Clients, texts: Sequence[str], body: dict[str, Any], *, stream: bool, model: str = MODEL
) -> Seen:
    create: Any = clients.openai.completions.with_raw_response.create
    asked = {"model": model, "prompt": "\n".join(texts), "max_tokens": MAX_TOKENS, "extra_body": body}
    return _openai(create, asked, stream)


def _openai(create: Any, asked: dict[str, Any], stream: bool) -> Seen:
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    raw = create(**asked)
    chunks = list(raw.parse()) if stream else [raw.parse()]
    last = chunks[-1]
    acms = [chunk.acm for chunk in chunks if "acm" in (chunk.model_extra or {})]
    cached = last.usage.prompt_tokens_details.cached_tokens
    return Seen(last.usage.prompt_tokens, cached, raw.headers, acms, last.usage, last.model, last=last)


def ask_responses(
    clients: Clients, texts: Sequence[str], body: dict[str, Any], *, stream: bool, model: str = MODEL
) -> Seen:
    create: Any = clients.openai.responses.with_raw_response.create
    raw = create(
        model=model, input=_messages(texts), max_output_tokens=MAX_TOKENS, store=False, stream=stream, extra_body=body
    )
    last = raw.parse()
    if stream:
        last = list(last)[-1].response
    acms = [last.acm] if "acm" in (last.model_extra or {}) else []
    cached = last.usage.input_tokens_details.cached_tokens
    return Seen(last.usage.input_tokens, cached, raw.headers, acms, last.usage, last.model, last=last)


def ask_messages(
    clients: Clients, texts: Sequence[str], body: dict[str, Any], *, stream: bool, model: str = MODEL
) -> Seen:
    asked: dict[str, Any] = {"model": model, "messages": _messages(texts), "max_tokens": MAX_TOKENS, "extra_body": body}
    if not stream:
        raw = clients.anthropic.messages.with_raw_response.create(**asked)
        message = raw.parse()
        acms = [message.acm] if "acm" in (message.model_extra or {}) else []
        return _anthropic(message, raw.headers, acms)
    with clients.anthropic.messages.stream(**asked) as events:
        starts, acms = None, []
        for event in events:
            if event.type == "message_start":
                starts = event.message.usage
            if event.type == "message_delta" and "acm" in (event.model_extra or {}):
                acms.append(event.acm)  # type: ignore[attr-defined]
        message = events.get_final_message()
        if "acm" in (message.model_extra or {}):
            acms.append(message.acm)  # type: ignore[attr-defined]
        seen = _anthropic(message, events.response.headers, acms)
    seen.starts = starts
    return seen


def _anthropic(message: Any, headers: Any, acms: list[Any]) -> Seen:
    return Seen(
        total(message.usage), message.usage.cache_read_input_tokens, headers, acms, message.usage, message.model
    )


def total(usage: Any) -> int:
    """The prompt as Anthropic's clients sum it up."""
    num_read, num_written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    assert min(usage.input_tokens, num_read, num_written) >= 0
    return int(usage.input_tokens + num_read + num_written)


Ask = Callable[..., Seen]
ASKS: dict[str, Ask] = {
    "chat": ask_chat,
    "completions": ask_completions,
    "responses": ask_responses,
    "messages": ask_messages,
}
