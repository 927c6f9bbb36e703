"""The answer of a chat as a response: its items, its status, its usage, and the fields that are ours.

chat       choices[0].message {reasoning, content, tool_calls}, finish_reason, usage      acm
response   output [reasoning, message, function_call], status, usage                      acm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.server.options.context_management import FIELD
from acmserve.server.vllm.responses import ResponsesRequest, output_items, response

OURS = ("acm", FIELD)


@dataclass(frozen=True, slots=True)
class Asked:
    """The request that is answered. `serving` is vLLM's handler of responses.

    `before` are items that stand in front of the model's own, `fields` join the response.
    """

    request: ResponsesRequest
    serving: Any
    before: Sequence[dict[str, Any]] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise what vLLM raises where a request can have no response. So nothing is answered, and nothing recorded."""
        self.response("in_progress", str(self.request.model), None, None)

    def response(self, status: str, model: str, usage: Mapping[str, Any] | None, created: int | None) -> dict[str, Any]:
        """The response without an output. `usage` is the chat's, as far as it is known."""
        num_prompt = (usage or {}).get("prompt_tokens") or 0
        return response(self.request, self.serving, status, model=model, num_prompt=num_prompt, created=created)


def whole_response(asked: Asked, chat: Mapping[str, Any]) -> dict[str, Any]:
    """The response of a whole chat answer."""
    choice = chat["choices"][0]
    output = output_items(choice["message"], asked.request, choice.get("logprobs"))
    status = status_of(choice.get("finish_reason"))
    made = asked.response(status, chat["model"], chat["usage"], chat.get("created"))
    made |= {"output": [*asked.before, *output], "usage": usage_of(chat["usage"])}
    return made | ours_of(chat) | dict(asked.fields)


def status_of(finish_reason: str | None) -> str:
    """The status of a response that ends."""
    return "incomplete" if finish_reason == "length" else "completed"


def ours_of(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are ours of a chat's answer, or of a chunk."""
    return {name: chat[name] for name in OURS if name in chat}


def usage_of(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """The usage of a chat as a response has it."""
    given = usage or {}
    read, wrote = given.get("prompt_tokens_details") or {}, given.get("completion_tokens_details") or {}
    num_prompt, num_output = given.get("prompt_tokens") or 0, given.get("completion_tokens") or 0
    return {
        "input_tokens": num_prompt,
        "input_tokens_details": {
            "cached_tokens": read.get("cached_tokens") or 0,
            "cache_write_tokens": read.get("created_cache_tokens") or 0,
        },
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": wrote.get("reasoning_tokens") or 0},
        "total_tokens": num_prompt + num_output,
    }
