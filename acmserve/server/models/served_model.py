"""A question to the model that is served here, asked by the server itself: for a summary, for a context map.

    ask_served    a request without a session, with a cache salt of its own: it leaves no prefix for others to find
    ask_on        a request of a session, under its name and its salt: what was served before is kept

vLLM's own chat handler answers. Such a question is no part of anybody's conversation. It runs in a context of its own,
because `exchange.CURRENT` names the session of the request that asked for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from acmserve.errors import Unavailable
from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.vllm.handlers import ChatCompletionRequest, ChatCompletionResponse, ErrorResponse, VLLMError


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """What the served model wrote, and the tokens that it read and wrote for it."""

    text: str
    input_tokens: int
    output_tokens: int


async def ask_served(serving: Any, body: Mapping[str, Any], what: str) -> ServedAnswer:
    """The answer to a chat request. `serving` is vLLM's chat handler.

    Raises Unavailable, "the served model wrote no {what}", where there is none.
    """
    own = {"cache_salt": secrets.token_hex(16), "chat_template_kwargs": {"enable_thinking": False}}
    return await _ask(serving, {**body, **own}, None, what)


async def ask_on(serving: Any, body: Mapping[str, Any], exchange: Exchange, what: str) -> ServedAnswer:
    """The answer to one more request of a session, which can call no tool. Its receipt is in the exchange then.

    The tools stay in the prompt. A server that leaves them out with `tool_choice` none is asked with "auto".
    Raises what `ask_served` does.
    """
    leaves_out = bool(getattr(serving, "exclude_tools_when_tool_choice_none", False))
    own = {"tool_choice": "auto" if leaves_out else "none"} if body.get("tools") else {}
    return await _ask(serving, {**body, **own}, exchange, what)


async def _ask(serving: Any, body: Mapping[str, Any], exchange: Exchange | None, what: str) -> ServedAnswer:
    try:
        request = ChatCompletionRequest.model_validate(body)
        answer = await _in_own_context(serving, request, exchange)
    except (VLLMError, ValueError) as error:
        raise Unavailable(f"the served model wrote no {what}: {error}") from error
    if isinstance(answer, ErrorResponse):
        raise Unavailable(f"the served model wrote no {what}: {answer.error.message}")
    usage = answer.usage
    return ServedAnswer(answer.choices[0].message.content or "", usage.prompt_tokens, usage.completion_tokens or 0)


async def _in_own_context(
    serving: Any, request: ChatCompletionRequest, exchange: Exchange | None
) -> ChatCompletionResponse | ErrorResponse:
    """Ask vLLM's chat handler outside of the running exchange, in another one where there is one.

    The handler answers a cancelled request with an error object, which would swallow the cancellation of the caller.
    """
    context = copy_context()
    context.run(CURRENT.set, exchange)
    asking = asyncio.create_task(serving.create_chat_completion(request), context=context)
    answer = await asking
    caller = asyncio.current_task()
    if caller is not None and caller.cancelling():
        raise asyncio.CancelledError
    assert isinstance(answer, ChatCompletionResponse | ErrorResponse)
    return answer
