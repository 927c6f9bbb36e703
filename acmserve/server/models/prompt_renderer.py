"""Writes prompts of a request without serving them: vLLM's own renderer and template, and a count of the text.

    body of the request   {"messages", "tools", "chat_template_kwargs", ...}
    messages to try       placed as the request places them (a preset, a context map)
    prompt                text of the template, without media        count: piece by piece

What the template refuses is None here. The request itself then says so to its client.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from starlette.datastructures import State

from acmserve.context.transcript.media import without_media
from acmserve.context.transcript.message import Message
from acmserve.server.models.piece_counter import PieceCounter
from acmserve.server.vllm.handlers import ChatCompletionRequest, VLLMError
from acmserve.server.vllm.rendering import render_chat

Placing = Callable[[Sequence[Message]], Sequence[Message]]
"""The messages of a prompt, made of those of the session."""

REFUSALS = (TemplateError, VLLMError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError)
"""What templates raise, which are programs."""

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class ServedPromptRenderer:
    """A `PromptRenderer` for one request. `state` is that of vLLM's app, `tokenizer` the served one."""

    state: State
    tokenizer: Any
    counter: PieceCounter
    body: Mapping[str, Any]
    place: Placing

    def written(self, messages: Sequence[Message]) -> str | None:
        """The prompt as text. None where it is refused."""
        prompt = self._render(messages)
        return prompt if prompt is None or isinstance(prompt, str) else str(self.tokenizer.decode(prompt))

    def num_tokens(self, messages: Sequence[Message]) -> int | None:
        """Tokens of the prompt. None where it is refused."""
        prompt = self._render(messages)
        if prompt is None:
            return None
        return self.counter.count(prompt) if isinstance(prompt, str) else len(prompt)

    def _render(self, messages: Sequence[Message]) -> str | list[int] | None:
        serving = getattr(self.state, "openai_serving_chat", None)
        if serving is None:
            return None
        placed = [without_media(message) for message in self.place(messages)]
        try:
            request = ChatCompletionRequest.model_validate({**self.body, "messages": copy.deepcopy(placed)})
            return render_chat(serving, request)
        except REFUSALS as error:
            logger.debug("acmserve: a prompt was not rendered: %s", error)
            return None


@dataclass(frozen=True, slots=True)
class PromptRenderers:
    """Makes the renderer of a request. One per API server process."""

    state: State
    tokenizer: Any
    counter: PieceCounter

    def __call__(self, body: Mapping[str, Any], place: Placing) -> ServedPromptRenderer:
        kept = {name: value for name, value in body.items() if name not in {"acm", "messages", "stream_options"}}
        return ServedPromptRenderer(self.state, self.tokenizer, self.counter, {**kept, "stream": False}, place)
