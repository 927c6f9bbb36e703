"""Summaries of fragments, written by a model: the one that is served here, or one on a server elsewhere.

Summaries are made at temperature 0 and stored by the session, so asking again costs nothing (`context.toolbox`).
"""

from __future__ import annotations

import os
from typing import Any

from starlette.datastructures import State

from acmserve.context.toolbox import SummaryWanted
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.config import ContextConfig
from acmserve.server.openai_server import OpenAIServer
from acmserve.server.served_chat import ask_served
from acmserve.server.sessions import Summarizer

API_KEY_VARIABLE = "ACMSERVE_SUMMARY_API_KEY"
TIMEOUT_SECONDS = 120.0
# Room for our own words and the chat template beside the text.
_NUM_PROMPT_TOKENS = 160
_WORDS_PER_TOKEN = 0.6

_PROMPT = """\
Summarize the text below for somebody who will not see it. Focus: {focus}.
Keep the names, numbers, identifiers and decisions that matter for this focus exactly as they are written. Say only \
what the text says. Begin with the summary itself, without a heading or introduction. At most {num_words} words.

=== text ===
{text}
=== end of the text ==="""


def open_summarizer(config: ContextConfig, state: State) -> Summarizer:
    """The summarizer that the settings ask for. `state` is that of vLLM's app."""
    if config.summary_url:
        return HttpSummarizer(config.summary_url, config.summary_model, config.max_summary_tokens)
    return ServedSummarizer(state, config.summary_model, config.max_summary_tokens)


class ServedSummarizer:
    """Asks the model that is served here, or the served model or adapter of this name."""

    def __init__(self, state: State, model: str, max_tokens: int) -> None:
        self._state = state
        self._model = model
        self._max_tokens = max_tokens

    async def summarize(self, wanted: SummaryWanted) -> str:
        """Raises InvalidRequest for a text that is too long for the model, Unavailable when it does not answer."""
        serving = getattr(self._state, "openai_serving_chat", None)
        if serving is None:
            raise Unavailable("the served model cannot chat, so it cannot write summaries")
        window = serving.model_config.max_model_len - self._max_tokens
        if wanted.num_tokens + _NUM_PROMPT_TOKENS > window:
            raise _too_long(wanted, window - _NUM_PROMPT_TOKENS)
        return await ask_served(serving, _body(wanted, self._model, self._max_tokens), "summary")


class HttpSummarizer:
    """Asks an OpenAI-compatible server elsewhere; without a model's name, the first model it lists."""

    def __init__(self, url: str, model: str, max_tokens: int, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._server = OpenAIServer(
            url,
            os.environ.get(API_KEY_VARIABLE),
            purpose="summaries",
            field="fragment_id",
            timeout_seconds=timeout_seconds,
        )
        self._model = model
        self._max_tokens = max_tokens

    async def summarize(self, wanted: SummaryWanted) -> str:
        """Raises InvalidRequest when the server refuses the text, Unavailable when it does not answer."""
        self._model = self._model or await self._server.first_model()
        try:
            answer = await self._server.post("chat/completions", _body(wanted, self._model, self._max_tokens))
        except InvalidRequest as error:
            raise InvalidRequest(
                "fragment_id", f"{wanted.fragment_id} ({wanted.num_tokens:,} tokens) {error.message}", _SMALLER
            ) from error
        try:
            return str(answer["choices"][0]["message"]["content"] or "")
        except (LookupError, TypeError) as error:
            raise self._server.unusable("no message") from error


_SMALLER = "If it is too long, cut smaller fragments with fragment_context and summarize those, or fold it."


def _body(wanted: SummaryWanted, model: str, max_tokens: int) -> dict[str, Any]:
    num_words = max(1, int(max_tokens * _WORDS_PER_TOKEN))
    prompt = _PROMPT.format(focus=wanted.focus, num_words=num_words, text=wanted.text)
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": max_tokens}
    return {"model": model, **body} if model else body


def _too_long(wanted: SummaryWanted, num_readable: int) -> InvalidRequest:
    return InvalidRequest(
        "fragment_id",
        f"{wanted.fragment_id} has {wanted.num_tokens:,} tokens; the model that writes summaries reads at most "
        f"{max(0, num_readable):,}.",
        _SMALLER,
    )
