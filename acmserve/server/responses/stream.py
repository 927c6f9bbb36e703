"""The stream of a chat as the events of a response, as OpenAI's clients read them.

    chat      {role} {"He"} {acm: tool} {"llo"} {tool_calls} {finish_reason, acm} {usage} [DONE]
    response  created, in_progress, output_item.added, content_part.added, output_text.delta ..
              in_progress + acm (what a tool loop tells), output_text.delta, .. output_item.done
              function_call_arguments.delta, .. output_item.done, completed + acm

The response is whole in its last event. Like vLLM's own, an answer that was cut ends with `response.completed` and the
status `incomplete`. What fails ends with `response.failed`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from acmserve.server.responses.answer import Asked, ours_of, status_of, usage_of
from acmserve.server.vllm.messages import payload_of
from acmserve.server.vllm.responses import Events

Event = dict[str, Any]


@dataclass(slots=True)
class ResponseStream:
    """Reads the chunks of one chat, and writes events. The first chunk says what the response is."""

    asked: Asked
    _events: Events = field(init=False)
    _first: dict[str, Any] | None = None
    _usage: Mapping[str, Any] | None = None
    _finish_reason: str | None = None
    _ours: dict[str, Any] = field(default_factory=dict)
    _failed: bool = False

    def __post_init__(self) -> None:
        self._events = Events(self.asked.request, first_index=len(self.asked.before))

    def take(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """The events of one chunk."""
        if self._failed:
            return
        if "error" in chunk:
            yield from self._fail(chunk)
            return
        yield from self._begin(chunk)
        acm = chunk.get("acm") or {}
        if "event" in acm:
            yield {"type": "response.in_progress", "response": self._first, "acm": acm}
        else:
            self._ours |= ours_of(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            yield from self._events.take(choice.get("delta") or {}, choice.get("logprobs"))

    def end(self) -> Iterator[Event]:
        """The events that end the response. None where it failed, or never began."""
        if self._failed or self._first is None:
            return
        yield from self._events.close()
        ended = self._first | {"status": status_of(self._finish_reason), "usage": usage_of(self._usage)}
        if ended["status"] == "incomplete":
            ended["incomplete_details"] = {"reason": "max_output_tokens"}
        ended["output"] = [*self.asked.before, *self._events.output()]
        yield {"type": "response.completed", "response": ended | self._ours | dict(self.asked.fields)}

    def _begin(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        if self._first is not None:
            return
        model, created = str(chunk.get("model") or self.asked.request.model), chunk.get("created")
        self._first = self.asked.response("in_progress", model, chunk.get("usage"), created)
        yield {"type": "response.created", "response": self._first}
        yield {"type": "response.in_progress", "response": self._first}
        for index, item in enumerate(self.asked.before):
            yield {"type": "response.output_item.added", "output_index": index, "item": item}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}

    def _fail(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        yield from self._begin(chunk)
        self._failed = True
        error = chunk["error"]
        said = {"code": error.get("code") if isinstance(error.get("code"), str) else "server_error"}
        said["message"] = str(error.get("message"))
        yield {
            "type": "response.failed",
            "response": (self._first or {}) | {"status": "failed", "error": said} | ours_of(chunk),
        }


async def response_events(asked: Asked, events: Any) -> AsyncGenerator[str, None]:
    """A chat's stream as server-sent events of a response, numbered."""
    stream, number = ResponseStream(asked), 0
    async with aclosing(events):
        async for event in events:
            chunk = payload_of(event)
            for made in () if chunk is None else stream.take(chunk):
                yield _written(made, number)
                number += 1
        for made in stream.end():
            yield _written(made, number)
            number += 1


def _written(event: Event, number: int) -> str:
    data = json.dumps({**event, "sequence_number": number}, ensure_ascii=False, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n"
