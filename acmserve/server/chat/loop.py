"""The tool loop on the server: the served model edits its context and searches it until it answers.

    client's request --> step 0 --> context calls carried out --> step 1 --> ... --> step n: answer --> one answer
                           |                  |                     |
    receipt of each step   r0            session.state             r1               in `acm.steps`

Every step is vLLM's own route function with the session rendered anew. So parsers, guided decoding and metrics are
those of an ordinary request, and each step has a receipt. All calls of one completion are carried out before the next
step is rendered: several folds are one plan.

To the client all steps are one answer: one id, texts joined, the tokens of all outputs. A stream says each context
operation and each receipt in a chunk of its own, with the edits that its prompt did not show yet. That chunk has an
empty delta and an `acm` that clients pass over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.errors import InvalidRequest
from acmserve.server.chat.model_step import Step, StepReader, add_completion_tokens, read_whole, render_event
from acmserve.server.chat.options import Turn
from acmserve.server.chat.request import LoopRequest
from acmserve.server.chat.steps import Endpoint, ToolLoop
from acmserve.server.exchange.receipt_header import receipt_line, session_headers, session_line
from acmserve.server.http.errors import problem_response
from acmserve.server.vllm.handlers import create_error_response, with_sse_keep_alive

__all__ = ["Turn", "run_loop"]

DONE = "data: [DONE]\n\n"

logger = logging.getLogger(f"vllm.{__name__}")


async def run_loop(turn: Turn, core: Endpoint, raw_request: Request, body: dict[str, Any]) -> Response | None:
    """Answer with vLLM's route function `core(request, raw_request)`. None when the client has gone.

    The caller has taken in the client's messages and holds the session until the answer, or the stream, ends. A stream
    comes back once the first step has begun. Its iterator is an async generator that has to be closed. Raises
    InvalidRequest for a request that a loop cannot serve. An error of the first step is returned as vLLM gave it.
    """
    loop = ToolLoop(turn, core, raw_request, LoopRequest(body, turn.options))
    response = await loop.ask()
    if isinstance(response, StreamingResponse):
        events = with_sse_keep_alive(_stream(loop, response), _keep_alive_seconds(raw_request))
        fields = {} if turn.found is None else turn.found.fields
        headers = session_headers(turn.session.session_id, session_line(turn.session.session_id, fields))
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    while isinstance(response, JSONResponse) and response.status_code == 200:
        step = read_whole(bytes(response.body), loop.spoken, loop.marks)
        async for _ in loop.carry_out(step):
            pass
        if loop.stopped_by is not None:
            return _answer(loop, step, response)
        await _run_background(response)
        response = await loop.ask_again()
    return response


def _answer(loop: ToolLoop, step: Step, response: JSONResponse) -> JSONResponse:
    """vLLM's JSON of the last step, as the answer of all steps."""
    choice = step.payload["choices"][0]
    message = {name: value for name, value in choice["message"].items() if name != "tool_calls"}
    shown = loop.client_message()
    message |= {name: value for name, value in shown.items() if value is not None}
    if shown["content"] is None and message.get("content"):
        message["content"] = None
    payload = step.payload | loop.spoken.shared
    ending = {"message": message, "finish_reason": _finish_reason(loop, step)}
    payload["choices"] = [{**choice, **loop.tokens.values, **ending}]
    payload["usage"] = add_completion_tokens(payload["usage"], loop.num_completion_tokens - step.num_completion_tokens)
    payload |= {"acm": loop.acm} | loop.edited
    headers = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
    headers |= session_headers(loop.turn.session.session_id, receipt_line(loop.acm))
    return JSONResponse(payload, headers=headers, background=response.background)


async def _stream(loop: ToolLoop, response: StreamingResponse) -> AsyncGenerator[str, None]:
    """One stream out of the streams of all steps. Whatever fails is said in it, as vLLM does."""
    try:
        async with aclosing(_stream_steps(loop, response)) as events:
            async for event in events:
                yield event
    except InvalidRequest as error:
        yield _error_event(problem_response(error), loop)
    except Exception as error:
        logger.exception("acmserve: a tool loop failed in step %d", len(loop.steps))
        yield render_event(create_error_response(error).model_dump())
    yield DONE


async def _stream_steps(loop: ToolLoop, response: Response | None) -> AsyncGenerator[str, None]:
    while isinstance(response, StreamingResponse):
        reader = StepReader(loop.spoken, loop.num_completion_tokens, first=not loop.steps)
        try:
            async with aclosing(response.body_iterator) as events:
                async for event in events:
                    for fields in reader.take(event):
                        yield fields
        finally:
            await _run_background(response)
        step = reader.step()
        if step is None or reader.failed:
            return
        async for event in _stream_end_of_step(loop, step):
            yield event
        if loop.stopped_by is not None:
            return
        response = await loop.ask_again()
    if isinstance(response, JSONResponse):
        yield _error_event(response, loop)


async def _stream_end_of_step(loop: ToolLoop, step: Step) -> AsyncGenerator[str, None]:
    """What is sent once a step is complete: its receipt, its context calls, and at last how the answer ends."""
    number = len(loop.steps)
    shown = {"event": "receipt", "step": number, "receipt": loop.receipt} | loop.commits.as_json
    yield _chunk(step, {}, acm=shown)
    async for operation in loop.carry_out(step):
        yield _chunk(step, {}, acm={"event": "tool", "step": number, **operation.as_dict()})
    if loop.stopped_by is None:
        return
    if loop.late_texts:
        yield _chunk(step, loop.late_texts)
    if loop.client_calls:
        calls = [{"index": index, **call} for index, call in enumerate(loop.client_calls)]
        yield _chunk(step, {"tool_calls": calls})
    num_before = loop.num_completion_tokens - step.num_completion_tokens
    choice = {**step.payload["choices"][0], "finish_reason": _finish_reason(loop, step)}
    end = {**step.payload, "choices": [choice]} | loop.edited
    for chunk in (end, step.usage_chunk):
        if chunk is not None:
            usage = chunk.get("usage")
            counted = {"usage": add_completion_tokens(usage, num_before)} if usage else {}
            yield render_event(chunk | {"acm": loop.acm} | counted)


def _chunk(step: Step, delta: dict[str, Any], **extra: Any) -> str:
    """A chunk of our own: clients read `choices[0].delta` of every chunk and pass over fields that they do not know."""
    head = {name: step.payload[name] for name in ("id", "object", "created", "model")}
    return render_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **extra})


def _error_event(response: JSONResponse, loop: ToolLoop) -> str:
    return render_event(json.loads(bytes(response.body)) | {"acm": loop.acm})


def _finish_reason(loop: ToolLoop, step: Step) -> str | None:
    """vLLM's, but `tool_calls` only where the client gets calls."""
    if step.finish_reason == "tool_calls" and not loop.client_calls:
        return "stop"
    return step.finish_reason


def _keep_alive_seconds(raw_request: Request) -> float:
    """vLLM's `--sse-keep-alive-interval`, which counts while a context tool works, too. 0: off."""
    app = raw_request.scope.get("app")
    args = getattr(app.state, "args", None) if app is not None else None
    return float(getattr(args, "sse_keep_alive_interval", 0))


async def _run_background(response: Response) -> None:
    """What vLLM does after an answer (its load counter), for the answers that the client does not get."""
    if response.background is not None:
        await response.background()
