"""The models that keep context maps, asked: the one that is served here, or one on a server elsewhere.

The answer is guided by a JSON schema (`response_format`), at temperature 0. What comes back is read without trust all
the same (`context/maps/answers.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.datastructures import State

from acmserve.context.maps.prompts import MapQuestion
from acmserve.errors import Unavailable
from acmserve.server.models.openai_server import OpenAIServer
from acmserve.server.models.served_model import ask_served
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.map_options import UpdateOptions

API_KEY_VARIABLE = "ACMSERVE_MAP_API_KEY"
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class MapAnswer:
    """What the model wrote, and the tokens that it read and wrote for it: 0 where a server elsewhere reports none."""

    text: str
    num_read: int
    num_written: int


class MapModel(Protocol):
    """Who answers as Distiller and Cartographer."""

    def num_answer_tokens(self, options: UpdateOptions) -> int:
        """The most tokens that an answer may have."""

    async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
        """The answer. Raises Unavailable or InvalidRequest where there is none."""


def open_map_model(config: ContextConfig, state: State) -> MapModel:
    """The model that the settings ask for. `state` is that of vLLM's app."""
    if config.map_url:
        return HttpMapModel(config.map_url, config.map_model, config.max_map_tokens)
    return ServedMapModel(state, config.map_model, config.max_map_tokens)


class ServedMapModel:
    """The model that is served here, or the served model or adapter of this name."""

    def __init__(self, state: State, model: str, max_tokens: int) -> None:
        self._state = state
        self._model = model
        self._max_tokens = max_tokens

    def num_answer_tokens(self, options: UpdateOptions) -> int:
        """The most tokens that an answer may have."""
        return options.max_tokens or self._max_tokens

    async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
        """Raises Unavailable when the model does not answer."""
        serving = getattr(self._state, "openai_serving_chat", None)
        if serving is None:
            raise Unavailable("the served model cannot chat, so it cannot keep a context map")
        body = _body(question, options.model or self._model, self.num_answer_tokens(options))
        if options.vllm_xargs:
            body["vllm_xargs"] = dict(options.vllm_xargs)
        answer = await ask_served(serving, body, f"answer as {question.name}")
        return MapAnswer(answer.text, answer.input_tokens, answer.output_tokens)


class HttpMapModel:
    """A model on an OpenAI-compatible server elsewhere. Without a name, the first model it lists."""

    def __init__(self, url: str, model: str, max_tokens: int, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._server = OpenAIServer(
            url,
            os.environ.get(API_KEY_VARIABLE),
            purpose="context maps",
            field="trajectory",
            timeout_seconds=timeout_seconds,
        )
        self._model = model
        self._max_tokens = max_tokens

    def num_answer_tokens(self, options: UpdateOptions) -> int:
        """The most tokens that an answer may have."""
        return options.max_tokens or self._max_tokens

    async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
        """Raises InvalidRequest when the server refuses the question, Unavailable when it does not answer."""
        self._model = self._model or await self._server.first_model()
        body = _body(question, options.model or self._model, self.num_answer_tokens(options))
        answer = await self._server.post("chat/completions", body)
        try:
            text = str(answer["choices"][0]["message"]["content"] or "")
        except (LookupError, TypeError) as error:
            raise self._server.unusable("no message") from error
        return MapAnswer(text, *_reported(answer.get("usage")))


def _reported(usage: Any) -> tuple[int, int]:
    """Tokens of a question and of its answer, as another server reports them."""
    told = usage if isinstance(usage, dict) else {}
    found = told.get("prompt_tokens"), told.get("completion_tokens")
    read, written = (max(0, one) if type(one) is int else 0 for one in found)
    return read, written


def _body(question: MapQuestion, model: str, max_tokens: int) -> dict[str, Any]:
    schema: Mapping[str, Any] = {"name": question.name, "schema": question.schema, "strict": True}
    body = {
        "messages": [{"role": "user", "content": question.prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    return {"model": model, **body} if model else body
