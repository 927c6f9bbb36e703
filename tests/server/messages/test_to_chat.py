"""A request of /v1/messages as the chat of a session, without a server: what vLLM's conversion says has to stand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import ChatRequest, SessionCall
from acmserve.server.messages.request import CountTokensRequest, MessagesRequest
from acmserve.server.messages.to_chat import to_chat_request
from acmserve.server.models.message_roles import MessageRoles
from acmserve.server.sessions.identifier import Identified
from acmserve.server.vllm.handlers import VLLMValidationError

SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "default": None}}}
READ = {"name": "read", "input_schema": {"type": "object"}}
REMOVED = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read"}}


def chat_of(kind: type[Any] = MessagesRequest, **more: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello."}]} | more
    raw_request = Request({"type": "http", "path": "/v1/messages", "headers": []})
    found = Identified("", "s", SessionParams("s"), "session_id", is_explicit=True, engine_id="s")
    call = SessionCall(kind.model_validate(body), raw_request, body, found, leave=lambda reason: None)  # type: ignore[arg-type,return-value]
    return asyncio.run(to_chat_request(call, call.request, None, MessageRoles()))


def test_the_schema_of_an_output_is_that_of_the_chat() -> None:
    chat = chat_of(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    for request in (chat.request, ChatCompletionRequest.model_validate(chat.body)):
        assert request.response_format is not None
        assert request.response_format.json_schema.json_schema == SCHEMA  # type: ignore[union-attr]
        request.to_sampling_params(5, {})


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": []},
        {"tools": [], "tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "none"}},
        {
            "tools": [READ],
            "messages": [{"role": "user", "content": "Hello."}, {"role": "system", "content": [REMOVED]}],
        },
    ],
)
def test_a_request_without_tools_is_a_chat_without_tools(kind: type[Any], more: dict[str, Any]) -> None:
    chat = chat_of(kind, **more)
    assert not chat.request.tools
    assert chat.request.tool_choice == ("none" if more.get("tool_choice") == {"type": "none"} else None), (
        "without a choice vLLM reads calls out of an answer, with `none` it does not"
    )
    assert ChatCompletionRequest.model_validate(chat.body).tool_choice == chat.request.tool_choice


def test_tools_are_offered_as_they_are() -> None:
    chat = chat_of(tools=[READ])
    assert [tool["function"]["name"] for tool in chat.body["tools"]] == ["read"]
    assert chat.body["tool_choice"] == "auto"


def test_a_call_without_tools_is_refused() -> None:
    with pytest.raises(VLLMValidationError, match="`tools` must be set"):
        chat_of(tools=[], tool_choice={"type": "any"})
