"""vLLM's own routes without an engine, ours in front: vLLM's functions run, a handler says what they got."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.testclient import TestClient
from vllm.config import KVTransferConfig
from vllm.entrypoints.anthropic.api_router import attach_router as attach_anthropic_routes
from vllm.entrypoints.anthropic.protocol import (
    AnthropicContextManagement,
    AnthropicCountTokensResponse,
    AnthropicMessagesResponse,
)
from vllm.entrypoints.generate.api_router import register_generate_api_routers
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse, UsageInfo
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler

from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.engine.config import CONNECTOR_NAME
from acmserve.server.app.endpoint import create
from acmserve.server.app.paths import MESSAGES_PATH
from acmserve.server.messages.context_editor import ContextEditor
from acmserve.server.models.template_probe import TemplateProbe
from tests.support.server.acm_app import FirstSentence, OutOfReach, Words, make_server

DELTA = {"type": "content_block_delta", "index": 0, "delta": {"text": '"type":"message_delta"'}}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
EVENTS = [f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n" for event in (DELTA, END)]


class Handler:
    """Stands in for vLLM's handlers of both protocols. `counted` has also what is counted to measure the template."""

    def __init__(self) -> None:
        self.seen: list[list[dict[str, Any]]] = []
        self.counted: list[list[dict[str, Any]]] = []
        self.can_count = True
        self.error: ErrorResponse | None = None

    async def create_messages(self, request: Any, raw_request: Any) -> Any:
        self.seen.append(_dumped(request))
        if self.error is not None:
            return self.error
        return self._stream() if request.stream else AnthropicMessagesResponse(id="m", content=[], model="m")

    async def _stream(self) -> AsyncIterator[str]:
        for event in EVENTS:
            yield event

    async def count_tokens(self, request: Any, raw_request: Any) -> AnthropicCountTokensResponse | ErrorResponse:
        self.counted.append(_dumped(request))
        if not self.can_count:
            return ErrorResponse(error=ErrorInfo(message="no tools in the template", type="BadRequestError", code=400))
        num_tokens = len(json.dumps(self.counted[-1]).split())
        return AnthropicCountTokensResponse(
            input_tokens=num_tokens, context_management=AnthropicContextManagement(original_input_tokens=num_tokens)
        )

    async def create_chat_completion(self, request: Any, raw_request: Any) -> ChatCompletionResponse:
        self.seen.append(list(request.messages))
        if self.error is not None:
            return self.error
        choice = {"index": 0, "message": {"role": "assistant", "content": "Done ."}, "finish_reason": "stop"}
        return ChatCompletionResponse.model_validate(
            {"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": UsageInfo()}
        )

    async def render_chat_request(self, request: Any) -> Any:
        """Vllm's answer to a count: the conversation, and a prompt of one token for each word."""
        self.counted.append(list(request.messages))
        return None, [{"prompt_token_ids": json.dumps(self.counted[-1]).split()}]


def _dumped(request: Any) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_none=True) for message in request.messages]


def make_editor(summarizer: FirstSentence | OutOfReach) -> ContextEditor:
    words = Words()
    return ContextEditor(TemplateProbe(lambda text: count_tokens(words, text)), summarizer)


def vendor_client(handler: Handler, editor: ContextEditor) -> TestClient:
    """A client of vLLM's routes and ours. Each has a state of its own."""
    app = copy.copy(_vendor_app())
    app.state, app.middleware_stack = State(dict(app.state._state)), None
    app.state.openai_serving_chat = app.state.anthropic_serving_messages = handler
    app.state.acm_server = make_server()
    app.state.acm_context_editor = editor
    return TestClient(app)


def tell_errors(app: FastAPI) -> None:
    """Have a copy of the app answer errors as vLLM's server does, with a status instead of an exception."""
    app.exception_handlers = dict(app.exception_handlers)
    app.state.args = Namespace(**vars(app.state.args), log_error_stack=False)
    app.middleware_stack = None
    init_exception_handler(app)


@cache
def _vendor_app() -> FastAPI:
    """The routes, which know no state: reading the signatures of vLLM's functions takes longer than most tests."""
    app = FastAPI()
    app.state.args = Namespace(
        kv_transfer_config=KVTransferConfig(kv_connector=CONNECTOR_NAME, kv_role="kv_both"), api_server_count=1
    )
    register_generate_api_routers(app)
    if not any(getattr(route, "path", "") == MESSAGES_PATH for route in app.routes):
        attach_anthropic_routes(app)
    create().attach_router(app)
    return app
