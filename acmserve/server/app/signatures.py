"""What FastAPI reads of a route: vLLM's own signature, with our requests where bodies may hold more."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from acmserve.server.messages.request import CountTokensRequest, MessagesRequest
from acmserve.server.responses.request import CompactedRequest
from acmserve.server.vllm.handlers import AnthropicCountTokensRequest, AnthropicMessagesRequest
from acmserve.server.vllm.responses import ResponsesRequest

_EXTENDED: Mapping[object, type] = {
    AnthropicMessagesRequest: MessagesRequest,
    AnthropicCountTokensRequest: CountTokensRequest,
    ResponsesRequest: CompactedRequest,
}


def extended_signature(route: Callable[..., Any]) -> inspect.Signature:
    """The signature of a route function, with what a body may hold here."""
    signature = inspect.signature(route)
    parameters = [
        parameter.replace(annotation=_EXTENDED.get(parameter.annotation, parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)
