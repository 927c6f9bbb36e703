"""What the served chat template writes around messages and tool calls, measured with tiny prompts that vLLM counts.

    [user]                                    n0      base(system, tools) = n(system, tools, [user]) - user - message
    [user, assistant, user]                   n1      message = (n1 - n0 - two texts) / 2
    [user, assistant(call), user(result)]     n2      call    = n2 - n0 - text, name, arguments - 2 * message

So a prompt can be weighed from its parts without rendering it: each text is counted once, however often it is resent.
The first two numbers are measured once, the base once for each set of system text and tools. Where vLLM cannot count
(a template without tools) the numbers of ChatML stand in, and it is asked again next time.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from vllm.entrypoints.anthropic.api_router import count_tokens
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest

from acmserve.context.ledger import Count
from acmserve.context.vendor_edits import Weights

MAX_BASES = 256
_TEXT, _NAME, _NO_ARGUMENTS = "a", "f", "{}"
_USER = {"role": "user", "content": _TEXT}
_CALL = {"type": "tool_use", "id": "toolu_0", "name": _NAME, "input": {}}
_RESULT = {"type": "tool_result", "tool_use_id": "toolu_0", "content": _TEXT}
_ANSWERED = [_USER, {"role": "assistant", "content": _TEXT}, _USER]
_CALLED = [_USER, {"role": "assistant", "content": [_CALL]}, {"role": "user", "content": [_RESULT]}]


@dataclass(frozen=True, slots=True)
class Frame:
    """What of a request stands in the prompt besides the messages, in the Anthropic form."""

    model: str
    system: Any = None
    tools: Any = None
    chat_template_kwargs: Any = None


class PromptProbe:
    """Remembers what it has measured; one per API server process."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._overheads: tuple[int, int] | None = None
        self._bases: OrderedDict[bytes, int] = OrderedDict()

    async def weigh(self, frame: Frame, raw_request: Request) -> Weights:
        """How the prompts of this frame are to be counted."""
        if self._overheads is None:
            self._overheads = await self._measure_overheads(frame.model, raw_request)
        default = Weights(self._count)
        message, call = self._overheads or (default.message_overhead, default.call_overhead)
        key = hashlib.blake2b(json.dumps([frame.system, frame.tools, frame.chat_template_kwargs]).encode()).digest()
        if key not in self._bases:
            num_tokens = await self._ask(frame, [_USER], raw_request)
            if num_tokens is None:
                return Weights(self._count, message, call)
            self._bases[key] = max(0, num_tokens - self._count(_TEXT) - message)
        self._bases.move_to_end(key)
        base = self._bases[key]
        while len(self._bases) > MAX_BASES:
            self._bases.popitem(last=False)
        return Weights(self._count, message, call, base)

    async def _measure_overheads(self, model: str, raw_request: Request) -> tuple[int, int] | None:
        frame = Frame(model)
        counts = [await self._ask(frame, messages, raw_request) for messages in ([_USER], _ANSWERED, _CALLED)]
        if None in counts:
            return None
        num_user, num_answered, num_called = (num for num in counts if num is not None)
        message = max(0, (num_answered - num_user - 2 * self._count(_TEXT)) // 2)
        said = self._count(_TEXT) + self._count(_NAME) + self._count(_NO_ARGUMENTS)
        return message, max(0, num_called - num_user - said - 2 * message)

    async def _ask(self, frame: Frame, messages: list[Any], raw_request: Request) -> int | None:
        """Tokens of a prompt as vLLM renders it; None where it cannot."""
        asked: Mapping[str, Any] = {
            "model": frame.model,
            "messages": messages,
            "system": frame.system,
            "tools": frame.tools,
            "chat_template_kwargs": frame.chat_template_kwargs,
        }
        try:
            request = AnthropicCountTokensRequest.model_validate(asked)
        except ValidationError:
            return None
        response = await count_tokens(request=request, raw_request=raw_request)
        if not isinstance(response, JSONResponse) or response.status_code != 200:
            return None
        num_tokens: int = json.loads(bytes(response.body))["input_tokens"]
        return num_tokens
