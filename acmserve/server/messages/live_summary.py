"""Asks for the summary of a request of /v1/messages behind its own messages: what was served before is in the cache.

    client's request   tools, system, messages                       over the trigger
    asked here         tools, system, messages + instruction         answered to the server alone, in free text
    answered then      tools, system, summary and what stays

vLLM's own handler answers, so the messages become the same prompt. The request runs in a context of its own, under the
session of the client's request where it has one. It does not know what becomes of the summary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from acmserve.context.eviction.compact import Summary
from acmserve.context.transcript.message import Message
from acmserve.errors import Unavailable
from acmserve.server.budget.conversation_summary import with_instruction
from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.vllm.handlers import (
    AnthropicMessage,
    AnthropicMessagesResponse,
    AnthropicToolChoice,
    ErrorResponse,
    VLLMError,
)


async def ask_behind(handler: Any, request: Any, shown: Sequence[Message], text: str, max_tokens: int) -> Summary:
    """The answer to `text` behind the messages `shown` of vLLM's `request`. `handler` is that of /v1/messages.

    Raises Unavailable where there is none.
    """
    asked = request.model_copy(
        update={
            "messages": [AnthropicMessage.model_validate(message) for message in with_instruction(shown, text)],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": False,
            "stop_sequences": None,
            "tool_choice": AnthropicToolChoice(type="none") if request.tools else None,
            "output_config": _without_format(request.output_config),
            "vllm_xargs": None,
        }
    )
    current = CURRENT.get()
    exchange = None if current is None else Exchange(replace(current.params, unrecorded=True), current.session_id)
    context = copy_context()
    context.run(CURRENT.set, exchange)
    try:
        answer = await asyncio.create_task(handler.create_messages(asked), context=context)
    except (VLLMError, ValueError) as error:
        raise Unavailable(f"the served model wrote no summary: {error}") from error
    caller = asyncio.current_task()
    if caller is not None and caller.cancelling():
        raise asyncio.CancelledError
    if isinstance(answer, ErrorResponse):
        raise Unavailable(f"the served model wrote no summary: {answer.error.message}")
    assert isinstance(answer, AnthropicMessagesResponse)
    written = "".join(block.text or "" for block in answer.content if block.type == "text")
    usage = answer.usage
    receipt = None if exchange is None else exchange.receipt
    num_cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Summary(written, usage.input_tokens + num_cached, usage.output_tokens, receipt)


def _without_format(config: Any) -> Any:
    """vLLM's `output_config` without the schema of the client's answer. The effort stays, for it is in the prompt."""
    return None if config is None else config.model_copy(update={"format": None})
