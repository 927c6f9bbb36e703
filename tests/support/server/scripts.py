"""Scripts for the scripted model, and one way to ask for an answer, streamed or not, with the official client."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

from tests.support.server.scripted_server import MODEL

_numbers = itertools.count()


def new_session() -> str:
    return f"loop-{next(_numbers)}-{uuid.uuid4().hex[:6]}"


def tool_call(name: str, **arguments: Any) -> str:
    """A tool call as a model of the Hermes style writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def log_lines(num_lines: int, first: int = 0) -> str:
    """Lines that all differ, as tool results do."""
    places = ("harbour", "mill", "orchard", "quarry", "chapel", "ferry", "kiln")
    numbers = range(first, first + num_lines)
    return "\n".join(
        f"line {n}: reading {n * n % 97} taken at the {places[n % 7]}, {n * 31 % 89} kept" for n in numbers
    )


@dataclass
class Answer:
    """What the client has at the end. `events` are the `acm` of the chunks between."""

    message: dict[str, Any]
    finish_reason: str
    usage: Any
    acm: dict[str, Any]
    ids: set[str]
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def operations(self) -> list[dict[str, Any]]:
        return [operation for step in self.acm["steps"] for operation in step["operations"]]

    @property
    def receipts(self) -> list[dict[str, Any]]:
        return [step["receipt"] for step in self.acm["steps"]]

    @property
    def fragment_ids(self) -> list[str]:
        """The fragments that the first fragment_context of the answer made."""
        made = next(operation for operation in self.operations if operation["tool"] == "fragment_context")
        ids: list[str] = made["fragment_ids"]
        return ids


def ask(
    client: OpenAI,
    session: str,
    messages: Sequence[Mapping[str, Any]],
    script: Sequence[str],
    *,
    stream: bool = False,
    acm: Mapping[str, Any] | None = None,
    **request: Any,
) -> Answer:
    """One answer of the tool loop to `messages`. The model says the lines of `script`."""
    chat: dict[str, Any] = {
        "model": MODEL,
        "messages": list(messages),
        "max_tokens": 600,
        "temperature": 0,
        "extra_body": {
            "session_id": session,
            "acm": {"tools": "sculptor", **(acm or {})},
            "vllm_xargs": {"script_id": uuid.uuid4().hex, "script": list(script)},
        },
    }
    if stream:
        return _read_stream(client.chat.completions.create(stream=True, stream_options=_USAGE, **chat | request))
    answer = client.chat.completions.create(**chat | request)
    choice = answer.choices[0]
    message = {k: v for k, v in choice.message.model_dump().items() if v is not None}
    return Answer(message, choice.finish_reason, answer.usage, answer.model_extra["acm"], {answer.id})


_USAGE = {"include_usage": True}


def _read_stream(chunks: Any) -> Answer:
    """Put the stream together as a client does that knows nothing of `acm`."""
    content, calls, events = "", {}, []
    finish_reason, usage, acm, ids = "", None, {}, set()
    for chunk in chunks:
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
            for call in choice.delta.tool_calls or ():
                assert call.index == len(calls)
                calls[call.index] = call.model_dump(exclude={"index"})
        extra = (chunk.model_extra or {}).get("acm")
        if extra is not None and "event" in extra:
            events.append(extra)
        elif extra is not None:
            acm = extra
    message: dict[str, Any] = {"role": "assistant"} | ({"content": content} if content else {})
    message |= {"tool_calls": list(calls.values())} if calls else {}
    return Answer(message, finish_reason, usage, acm, ids, events)
