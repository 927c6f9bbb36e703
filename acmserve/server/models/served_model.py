"""A question to the model that is served here, asked by the server itself: for a summary, for a context map.

vLLM's own chat handler answers, to a request without a session and with a cache salt of its own. Such a question is no
part of anybody's conversation, and leaves no prefix that somebody else could find. It runs in a context of its own,
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
from acmserve.server.exchange.exchange import CURRENT
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
    try:
        request = ChatCompletionRequest.model_validate({**body, **own})
        answer = await _in_own_context(serving, request)
    except (VLLMError, ValueError) as error:
        raise Unavailable(f"the served model wrote no {what}: {error}") from error
    if isinstance(answer, ErrorResponse):
        raise Unavailable(f"the served model wrote no {what}: {answer.error.message}")
    usage = answer.usage
    return ServedAnswer(answer.choices[0].message.content or "", usage.prompt_tokens, usage.completion_tokens or 0)


async def _in_own_context(serving: Any, request: ChatCompletionRequest) -> ChatCompletionResponse | ErrorResponse:
    """Ask vLLM's chat handler outside of the running exchange.

    The handler answers a cancelled request with an error object, which would swallow the cancellation of the caller.
    """
    context = copy_context()
    context.run(CURRENT.set, None)
    asking = asyncio.create_task(serving.create_chat_completion(request), context=context)
    answer = await asking
    caller = asyncio.current_task()
    if caller is not None and caller.cancelling():
        raise asyncio.CancelledError
    assert isinstance(answer, ChatCompletionResponse | ErrorResponse)
    return answer
