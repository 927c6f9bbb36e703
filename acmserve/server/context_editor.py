"""Carries out `context_management` between a route and vLLM: the request is edited, the answer says what was cleared.

    /v1/messages               blocks   --edit--> blocks   --> vLLM --> answer + context_management.applied_edits
    /v1/messages/count_tokens  counted twice, as sent and as edited     --> input_tokens, original_input_tokens
    /v1/chat/completions       messages --edit--> messages --> vLLM --> answer + context_management.applied_edits

With a session, what was cleared once is cleared in every later turn: the edited prefix is in the cache. This memory is
taken over when vLLM has accepted the request; it has no text, only digests, and the sessions used longest ago are
forgotten. `count_tokens` looks at the memory and leaves it alone.

Tokens are counted part by part, by the served tokenizer and with what the template writes around them (see
`prompt_probe.py`), so a trigger is right to a few tokens and the prompt is not rendered twice for it. Images count
nothing, and reasoning counts whether the template shows it or not.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from vllm.entrypoints.anthropic.protocol import AnthropicMessage
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from acmserve.context.blocks import edit_blocks
from acmserve.context.message import Message
from acmserve.context.tokens import Tokenizer, count_tokens
from acmserve.context.vendor_edits import EditedHistory, Memory, VendorEdit, edit_chat
from acmserve.server.context_management import FIELD
from acmserve.server.delivery import deliver_field
from acmserve.server.exchange import CURRENT
from acmserve.server.prompt_probe import Frame, PromptProbe

MAX_SESSIONS = 1024
SessionKey = tuple[str, str]
Endpoint = Callable[..., Awaitable[Response | None]]


@dataclass(frozen=True, slots=True)
class EditingRequest:
    """A request to edit and answer: `request` is vLLM's object, `body` the JSON that it was read from.

    `key` is tenant and session id; None judges the request alone.
    """

    request: Any
    raw_request: Request
    body: Mapping[str, Any]
    edits: tuple[VendorEdit, ...]
    key: SessionKey | None = None


class ContextEditor:
    """At `app.state.acm_context_editor`; one per API server process."""

    def __init__(self, tokenizer: Tokenizer, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._memories: OrderedDict[SessionKey, Memory] = OrderedDict()
        self._probe = PromptProbe(lambda text: count_tokens(tokenizer, text))

    async def answer_messages(self, asked: EditingRequest, core: Endpoint) -> Response | None:
        """Answer /v1/messages with vLLM's route function."""
        request, edited = await self._edit_blocks(asked)
        response = await core(request=request, raw_request=asked.raw_request)
        if asked.key is not None and response is not None and response.status_code == 200:
            self._remember(asked.key, edited.memory)
        return deliver_field(response, FIELD, {"applied_edits": edited.applied})

    async def count_messages(self, asked: EditingRequest, core: Endpoint) -> Response | None:
        """Answer /v1/messages/count_tokens; vLLM counts."""
        original = await core(request=asked.request, raw_request=asked.raw_request)
        request, _ = await self._edit_blocks(asked)
        if request is asked.request or not isinstance(original, JSONResponse) or original.status_code != 200:
            return original
        num_original = json.loads(bytes(original.body))["input_tokens"]
        response = await core(request=request, raw_request=asked.raw_request)
        return deliver_field(response, FIELD, {"original_input_tokens": num_original})

    async def answer_chat(self, asked: EditingRequest, core: Endpoint) -> Response | None:
        """Answer /v1/chat/completions of a request that is judged alone."""
        messages, request = asked.body["messages"], asked.request
        weights = await self._probe.weigh(_chat_frame(asked.body), asked.raw_request)
        shown, edited = edit_chat(messages, asked.edits, weights)
        if edited.shed:
            request = ChatCompletionRequest.model_validate({**asked.body, "messages": shown})
        response = await core(request=request, raw_request=asked.raw_request)
        return deliver_field(response, FIELD, {"applied_edits": edited.applied})

    def in_session(self, asked: EditingRequest, core: Endpoint) -> tuple[Endpoint, dict[str, Any]]:
        """vLLM's chat route with the edits in front of it, for `answer_chat` to call, and what the answer has to say.

        What the session renders is edited, its transcript stays whole. What is said is complete when the route returns.
        """
        told: dict[str, Any] = {"applied_edits": []}

        async def edited_core(request: Any, raw_request: Request) -> Response | None:
            exchange = CURRENT.get()
            assert exchange is not None
            assert asked.key is not None
            weights = await self._probe.weigh(_chat_frame(asked.body), raw_request)
            shown, edited = edit_chat(exchange.messages, asked.edits, weights, self._memories.get(asked.key))
            told["applied_edits"] = edited.applied
            if edited.shed:
                parsed = ChatCompletionRequest.model_validate(
                    {"model": request.model, "messages": copy.deepcopy(shown)}
                )
                request = request.model_copy(update={"messages": parsed.messages})
            response = await core(request=request, raw_request=raw_request)
            if response is not None and response.status_code == 200:
                self._remember(asked.key, edited.memory)
            return response

        return edited_core, told

    async def _edit_blocks(self, asked: EditingRequest) -> tuple[Any, EditedHistory]:
        """The request with what is left of its messages; the very object where all is left."""
        messages: list[Message] = asked.body["messages"]
        memory = None if asked.key is None else self._memories.get(asked.key)
        weights = await self._probe.weigh(_frame(asked.body), asked.raw_request)
        shown, edited = edit_blocks(messages, asked.edits, weights, memory)
        if len(shown) == len(messages) and all(new is old for new, old in zip(shown, messages, strict=True)):
            return asked.request, edited
        return _with_messages(asked.request, messages, shown), edited

    def _remember(self, key: SessionKey, memory: Memory) -> None:
        self._memories[key] = memory
        self._memories.move_to_end(key)
        while len(self._memories) > self._max_sessions:
            self._memories.popitem(last=False)


def _with_messages(request: Any, messages: Sequence[Message], shown: Sequence[Message]) -> Any:
    """A copy of vLLM's request with these messages; those that were sent like that keep their parsed objects."""
    parsed = {id(message): known for message, known in zip(messages, request.messages, strict=True)}
    new = [parsed.get(id(message)) or AnthropicMessage.model_validate(message) for message in shown]
    return request.model_copy(update={"messages": new})


def _frame(body: Mapping[str, Any]) -> Frame:
    return Frame(body["model"], body.get("system"), body.get("tools"), body.get("chat_template_kwargs"))


def _chat_frame(body: Mapping[str, Any]) -> Frame:
    """The frame of a request in OpenAI's form; its system text is one of its messages."""
    tools = [
        {
            "name": tool["function"].get("name"),
            "description": tool["function"].get("description"),
            "input_schema": tool["function"].get("parameters") or {},
        }
        for tool in body.get("tools") or ()
        if isinstance(tool.get("function"), Mapping)
    ]
    return Frame(body.get("model") or "", None, tools or None, body.get("chat_template_kwargs"))
