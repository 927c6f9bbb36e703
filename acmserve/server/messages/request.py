"""vLLM's requests of /v1/messages, with compaction blocks allowed: a summary takes the place of what stood before it.

vLLM refuses the block's type before a route is entered, so the messages are transformed before its models read them.
What is wrong with a block is said by the route (`check_compaction`), in the vendor's shape of errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import model_validator

from acmserve.context.anthropic.compaction_blocks import has_compaction, resume
from acmserve.server.vllm.handlers import AnthropicCountTokensRequest, AnthropicMessagesRequest


class MessagesRequest(AnthropicMessagesRequest):
    """vLLM's request for an answer. `messages` may have compaction blocks."""

    @model_validator(mode="before")
    @classmethod
    def resume_compacted(cls, data: Any) -> Any:
        """The request as the model is to see it."""
        return _resumed(data)


class CountTokensRequest(AnthropicCountTokensRequest):
    """vLLM's request for a count. `messages` may have compaction blocks."""

    @model_validator(mode="before")
    @classmethod
    def resume_compacted(cls, data: Any) -> Any:
        """The request as the model is to see it."""
        return _resumed(data)


_EXTENDED: Mapping[object, type] = {
    AnthropicMessagesRequest: MessagesRequest,
    AnthropicCountTokensRequest: CountTokensRequest,
}


def extended_signature(route: Callable[..., Any]) -> inspect.Signature:
    """The signature of a route function, which FastAPI reads, with our requests in the place of vLLM's."""
    signature = inspect.signature(route)
    parameters = [
        parameter.replace(annotation=_EXTENDED.get(parameter.annotation, parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


def _resumed(data: Any) -> Any:
    if not isinstance(data, Mapping) or not has_compaction(data.get("messages")):
        return data
    return {**data, "messages": resume(data["messages"])}
