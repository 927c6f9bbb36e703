"""What the served model's chat template writes around messages, measured at the start by rendering small chats.

    user x                            n1
    user x, assistant x, user x       n2      a message is (n2 - n1) / 2 without its own text
    ... assistant x + call, user x    n3      a call is n3 - n2 without name and arguments
    ... + call, result x, user x      n4      a result is n4 - n3 without its text

So a prompt can be weighed from its parts without rendering it: each text is counted once, however often it is resent.
What a route puts in front of the messages (its system text, its tools) is the base of a *frame*. vLLM counts a tiny
prompt of each frame once, since each of its routes has its own way to write tools. A frame is its client's, so each
tenant's is counted anew. What is measured at the start is the template's alone, and everybody's.

Other small chats tell which orders of messages the template takes (`TemplateRules`).

A template that refuses these chats (some know no tools) leaves the defaults, the numbers of ChatML. The meter of a
session calibrates itself with every prompt that is served.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from acmserve.context.eviction.clearing_edits import Weights
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TAKES_ALL, Overheads, TemplateRules, probe_rules
from acmserve.context.transcript.token_counts import Count
from acmserve.server.http.tenants import TENANT
from acmserve.server.http.text_memory import TextMemory, text_digest
from acmserve.server.models.prompt_renderer import REFUSALS
from acmserve.server.vllm.handlers import AnthropicCountTokensRequest, count_tokens, load_chat_template

MAX_BASES = 256
Render = Callable[[Sequence[Message]], str]
_TEXT = "Harbour."
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {}}}

logger = logging.getLogger(f"vllm.{__name__}")


def probe_template(render: Callable[[Sequence[Message]], int], count: Count) -> tuple[Overheads, int]:
    """The overheads, and the tokens of a prompt besides messages and tools. `render` counts a rendered chat."""
    user, result = {"role": "user", "content": _TEXT}, {"role": "tool", "content": _TEXT, "tool_call_id": "call00001"}
    said = {"role": "assistant", "content": _TEXT}
    called = said | {"tool_calls": [_CALL]}
    num_text, num_call = count(_TEXT), count("look") + count("{}")
    n1, n2 = render([user]), render([user, said, user])
    message = max(0, (n2 - n1) // 2 - num_text)
    num_base = max(0, n1 - num_text - message)
    n3 = render([user, called, user])
    n4 = render([user, called, result, user])
    return Overheads(message, max(0, n3 - n2 - num_call), max(0, n4 - n3 - num_text)), num_base


@dataclass(frozen=True, slots=True)
class TemplateFrame:
    """What of a request stands in the prompt besides the messages, in the Anthropic form."""

    model: str
    system: Any = None
    tools: Any = None
    chat_template_kwargs: Any = None


class TemplateProbe:
    """One per API server process. `overheads` hold for all prompts, `num_base` for those without system and tools.

    `rules` say which orders of messages the template takes. `render` writes a chat, and `count_prompt` counts
    what it wrote.
    """

    def __init__(self, count: Count, render: Render | None = None, count_prompt: Count | None = None) -> None:
        self.count = count
        self.overheads, self.num_base = Overheads(), 0
        self.rules = TAKES_ALL
        self._bases: TextMemory[int] = TextMemory(MAX_BASES)
        if render is None:
            return
        self.rules = rules_of(render)
        counting = count_prompt or count
        try:
            self.overheads, self.num_base = probe_template(lambda messages: counting(render(messages)), count)
        except REFUSALS as error:
            logger.info("acmserve: the chat template was not measured (%s); prompts are weighed by a guess", error)

    async def weigh(self, frame: TemplateFrame, raw_request: Request) -> Weights:
        """How the prompts of this frame are to be counted. Where vLLM cannot count, it is asked again next time."""
        message, call, result = self.overheads.message, self.overheads.call, self.overheads.result
        asked = json.dumps([frame.system, frame.tools, frame.chat_template_kwargs])
        digest = text_digest(TENANT.get(), asked)
        base = self._bases.find(digest)
        if base is None:
            num_tokens = await _count_frame(frame, raw_request)
            if num_tokens is None:
                return Weights(self.count, message, call, result_overhead=result)
            base = max(0, num_tokens - self.count(_TEXT) - message)
            self._bases.keep(digest, base)
        return Weights(self.count, message, call, base, result)


def open_probe(tokenizer: Any, count: Count, chat_template: str | None) -> TemplateProbe:
    """A probe of the served template. `tokenizer` is vLLM's, `chat_template` what `--chat-template` names."""

    template = load_chat_template(chat_template)

    def count_prompt(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return TemplateProbe(count, template_render(tokenizer, template), count_prompt)


def template_render(tokenizer: Any, template: str | None = None) -> Render:
    """Writes chats with a tokenizer's chat template, or with another one."""

    def render(messages: Sequence[Message]) -> str:
        written = tokenizer.apply_chat_template(
            copy.deepcopy(list(messages)), chat_template=template, tokenize=False, add_generation_prompt=True
        )
        return str(written)

    return render


def rules_of(render: Render) -> TemplateRules:
    """Which orders of messages a template takes, and what it shows of them."""

    def show(messages: Sequence[Message]) -> str | None:
        try:
            return render(messages)
        except REFUSALS:
            return None

    return probe_rules(show)


async def _count_frame(frame: TemplateFrame, raw_request: Request) -> int | None:
    """Tokens of a frame with one short message, as vLLM renders it. None where it cannot."""
    asked: Mapping[str, Any] = {
        "model": frame.model,
        "messages": [{"role": "user", "content": _TEXT}],
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
