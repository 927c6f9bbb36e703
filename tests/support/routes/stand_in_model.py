"""Stands for vLLM's route function beside the real loop, sessions and tools: it says its lines, one a request.

With `encode` it knows what it was served in token ids, as the engine does, and samples what it says.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.exchange.sampled import SampledAnswer

RAW = Request({"type": "http", "method": "POST", "path": "/", "headers": []})


def call(name: str, call_id: str = "c1", **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def said(content: str | None = None, *calls: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "tool_calls": list(calls), "refusal": None}
    reason = finish_reason or ("tool_calls" if calls else "stop")
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return {
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }


def _written(message: Any) -> str:
    """A message as a chat template writes it. What was sampled comes again in the next prompt, to the token."""
    calls = [f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ()]
    return f" <{message['role']}> {message.get('content') or ''} {' '.join(calls)} </{message['role']}>"


class Model:
    """See the module. A line may be an exception or None."""

    def __init__(self, *lines: Any, encode: Callable[[str], list[int]] | None = None) -> None:
        self.lines = list(lines)
        self.prompts: list[list[int]] = []
        self._encode = encode
        self.requests: list[Any] = []
        self.num_background = 0

    async def __call__(self, request: Any, raw_request: Request) -> Response | None:
        number = len(self.requests)
        self.requests.append(request)
        line = self.lines[number]
        if isinstance(line, Exception):
            raise line
        exchange = CURRENT.get()
        assert exchange is not None
        exchange.acm = {"session_id": exchange.session_id, "receipt": {"number": number}}
        background = BackgroundTask(self._count)
        if line is None or isinstance(line, Response):
            return line
        self._sample(exchange, request, line)
        answer = {"id": f"chatcmpl-{number}", "created": number, **line}
        if request.stream:
            return StreamingResponse(self._stream(answer), background=background)
        return JSONResponse(answer, background=background)

    def _sample(self, exchange: Exchange, request: Any, line: dict[str, Any]) -> None:
        """What the engine was served and sampled. A prompt is its messages, and the beginning of an answer."""
        if self._encode is None or exchange.sampled is None:
            return
        self.prompts.append(self._encode("".join(map(_written, request.messages)) + " <assistant>"))
        choice = line["choices"][0]
        sampled = _written(choice["message"]).removeprefix(" <assistant>")
        exchange.sampled.prompt = self.prompts[-1]
        exchange.sampled.answers[0] = SampledAnswer(self._encode(sampled), "", None, choice["finish_reason"])

    async def _count(self) -> None:
        self.num_background += 1

    async def _stream(self, answer: dict[str, Any]) -> AsyncGenerator[str, None]:
        head = {"id": answer["id"], "created": answer["created"], "model": "m", "object": "chat.completion.chunk"}
        message, choice = answer["choices"][0]["message"], answer["choices"][0]
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": letter} for letter in message["content"] or ""]
        deltas += [{"tool_calls": [{"index": i, **made}]} for i, made in enumerate(message["tool_calls"])]
        yield ": keep-alive\n\n"
        for delta in deltas:
            event = {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            yield f"data: {json.dumps(event)}\n\n"
        end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
        yield f"data: {json.dumps(end)}\n\n"
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': answer['usage']})}\n\n"
        yield "data: [DONE]\n\n"
