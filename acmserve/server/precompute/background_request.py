"""Background requests: a context is sent to the served model to be computed, and its one token is thrown away.

    last request of the session   {"messages", "tools", "chat_template_kwargs", "cache_salt", "temperature", ...}
    frame                         {            "tools", "chat_template_kwargs", "cache_salt"}      what shapes a prompt
    background request            frame + {"messages": a context that may come, "max_tokens": 1}

The request passes vLLM's own chat handler, so its tokens are those of the prompt that will come, as far as that goes.
It ends with its last message, where the real one goes on with the next. The engine runs it when it has nothing else to
do (`SessionParams.precompute`). vLLM counts it among its requests, as it counts summaries. So one background request is
sent at a time. The engine runs no second one, and a bound on queued requests is for those that somebody waits for.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.datastructures import State

from acmserve.context.transcript.message import Message
from acmserve.errors import Unavailable
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.options.preset import with_preset
from acmserve.server.precompute.account_turns import AccountTurns
from acmserve.server.vllm.handlers import ChatCompletionRequest, ErrorResponse

_SHAPING = (
    "model",
    "tools",
    "tool_choice",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_special_tokens",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "cache_salt",
)

_NAMING = ("model", "cache_salt")
"""What a prompt of token ids needs of it: who computes it, and who finds it."""


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """What shapes the prompts of a session beside its messages. `preset` names the prompt of a tool loop."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None

    def body(self, messages: Sequence[Message]) -> dict[str, Any]:
        """The background request that computes `messages`. It shares nothing with them."""
        own = {
            "messages": with_preset(messages, self.preset),
            "add_generation_prompt": False,
            "max_tokens": 1,
            "temperature": 0,
        }
        return copy.deepcopy({**self.fields, **own})

    def body_of_tokens(self) -> dict[str, Any]:
        """A background request whose prompt is given as token ids. What is rendered for it is thrown away."""
        named = {name: self.fields[name] for name in _NAMING if name in self.fields}
        return RequestFrame(named).body([{"role": "user", "content": "."}])


def frame_of(body: Mapping[str, Any], preset: str | None = None) -> RequestFrame:
    """The frame of a chat request. A forced tool call would want a grammar, and "auto" is taken in its place.

    Not "none": a server may leave the tools out of such a prompt, and a template may say there that none are wanted.
    """
    fields = {name: body[name] for name in _SHAPING if body.get(name) is not None}
    if fields.get("tool_choice", "auto") not in ("auto", "none"):
        fields["tool_choice"] = "auto"
    return RequestFrame(fields, preset)


class Background(Protocol):
    """Has a context computed: the exchange is in the context variable of the task that calls."""

    def is_busy(self) -> bool:
        """Whether the engine serves anybody else: then nothing would be computed, and asking costs the others time."""

    async def __call__(self, body: Mapping[str, Any]) -> None:
        """Raises `Unavailable` where the model takes no such request."""

    async def render(self, body: Mapping[str, Any]) -> list[int] | None:
        """The token ids of a request's prompt, nothing computed. None where it is no prompt of text alone."""


class ServedBackground:
    """Asks the model that is served here. `state` is that of vLLM's app."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._num_running = 0
        self._turns = AccountTurns()

    def is_busy(self) -> bool:
        """By vLLM's count of unfinished requests, less our own."""
        client = getattr(self._state, "engine_client", None)
        return client is not None and client.get_num_unfinished_requests() > self._num_running

    async def render(self, body: Mapping[str, Any]) -> list[int] | None:
        """As vLLM's chat handler renders it (vllm/entrypoints/openai/chat_completion/serving.py:258)."""
        rendered = await self._serving().render_chat_request(ChatCompletionRequest.model_validate(body))
        if isinstance(rendered, ErrorResponse):
            return None
        _, prompts = rendered
        token_ids: list[int] | None = prompts[0].get("prompt_token_ids") if prompts[0].get("type") == "token" else None
        return token_ids

    def _serving(self) -> Any:
        serving = getattr(self._state, "openai_serving_chat", None)
        if serving is None:
            raise Unavailable("the served model cannot chat, so nothing is precomputed")
        return serving

    async def __call__(self, body: Mapping[str, Any]) -> None:
        """Returns when the engine has ended the request. API keys take turns.

        vLLM's handler answers a cancelled request with an error object, which would swallow the cancellation.
        """
        serving, exchange = self._serving(), CURRENT.get()
        async with self._turns.turn("" if exchange is None else exchange.params.account):
            self._num_running += 1
            try:
                answer = await serving.create_chat_completion(ChatCompletionRequest.model_validate(body))
            finally:
                self._num_running -= 1
        caller = asyncio.current_task()
        if caller is not None and caller.cancelling():
            raise asyncio.CancelledError
        if isinstance(answer, ErrorResponse):
            raise Unavailable(f"the served model precomputed nothing: {answer.error.message}")
