"""Summaries of fragments and conversations, written by a model: the one served here, or one on a server elsewhere.

Summaries are made at temperature 0 and stored by the session, so asking again costs nothing
(`context.tools.summarize_fragment`, `context.eviction.compact`). The served model is asked behind the conversation
itself where it serves that, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import State

from acmserve.context.eviction.compact import Summary
from acmserve.context.tools.run import SummaryWanted
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.budget.conversation_summary import NUM_INSTRUCTION_TOKENS, LivePrompt, with_instruction
from acmserve.server.models.openai_server import OpenAIServer
from acmserve.server.models.protocols import Summarizer
from acmserve.server.models.served_model import ask_on, ask_served
from acmserve.server.options.config import ContextConfig

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

_CONVERSATION_PROMPT = """\
Below is the older part of a conversation of a user and an assistant who calls tools. It will be taken away, and the \
assistant goes on with your summary in its place.
{instructions}
Begin with the summary itself, without a heading or introduction. At most {num_words} words.

=== conversation ===
{text}
=== end of the conversation ==="""

_APPENDED_PROMPT = """\
Stop here for a moment, and call no tool. The conversation above becomes too long. What the assistant and its tools \
wrote in it will be taken away, and the assistant goes on with your summary in its place. What the user wrote stays.
{instructions}
Begin with the summary itself, without a heading or introduction. At most {num_words} words."""

_INSTRUCTIONS = """\
Write what the assistant needs to go on: what was asked for, what was done and found, what was decided, and what is \
still open. Keep names, numbers, paths and identifiers exactly as they are written, and all that an earlier summary \
in it says and that still matters. Say only what the conversation says."""


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
        self.max_tokens = max_tokens

    async def summarize(self, wanted: SummaryWanted) -> str:
        """Raises InvalidRequest for a text that is too long for the model, Unavailable when it does not answer."""
        serving, window = self._serving()
        if wanted.num_tokens + _NUM_PROMPT_TOKENS > window:
            raise _too_long(wanted, window - _NUM_PROMPT_TOKENS)
        return (await self._ask(serving, _prompt(wanted, self.max_tokens))).text

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        """Raises what `summarize` does. `num_tokens` counts the text and the instructions."""
        serving, window = self._serving()
        num_readable = window - NUM_INSTRUCTION_TOKENS
        if num_tokens > num_readable:
            raise InvalidRequest(
                "budget",
                f"the {num_tokens:,} tokens to summarize are too many: the model that writes summaries reads at most "
                f"{max(0, num_readable):,}.",
                _SMALLER_BUDGET,
            )
        return await self._ask(serving, _conversation_prompt(text, instructions, self.max_tokens))

    def live_refusal(self, model: str) -> str:
        """Another model has nothing of the conversation in its cache."""
        if self._model and self._model != model:
            return f"summaries are written by another model, {self._model}"
        return ""

    def live_instruction(self, instructions: str = "") -> str:
        """The server's own words around what the summary is to keep."""
        return _appended_prompt(instructions, self.max_tokens)

    async def summarize_live(self, live: LivePrompt, shown: Sequence[Message], instructions: str = "") -> Summary:
        """Raises Unavailable when the model does not answer, or its template refuses the messages."""
        serving, _ = self._serving()
        asked = with_instruction(shown, self.live_instruction(instructions))
        exchange = live.exchange(asked)
        own = {"temperature": 0, "max_tokens": self.max_tokens}
        answer = await ask_on(serving, {**live.body(asked), **own}, exchange, "summary")
        return Summary(answer.text, answer.input_tokens, answer.output_tokens, exchange.receipt)

    def _serving(self) -> tuple[Any, int]:
        """vLLM's chat handler, and the tokens of a prompt that leave room for the summary."""
        serving = getattr(self._state, "openai_serving_chat", None)
        if serving is None:
            raise Unavailable("the served model cannot chat, so it cannot write summaries")
        return serving, serving.model_config.max_model_len - self.max_tokens

    async def _ask(self, serving: Any, prompt: str) -> Summary:
        answer = await ask_served(serving, _body(prompt, self._model, self.max_tokens), "summary")
        return Summary(answer.text, answer.input_tokens, answer.output_tokens)


class HttpSummarizer:
    """Asks an OpenAI-compatible server elsewhere. Without a model's name, the first model it lists."""

    def __init__(self, url: str, model: str, max_tokens: int, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._server = OpenAIServer(
            url,
            os.environ.get(API_KEY_VARIABLE),
            purpose="summaries",
            field="fragment_id",
            timeout_seconds=timeout_seconds,
        )
        self._model = model
        self.max_tokens = max_tokens

    async def summarize(self, wanted: SummaryWanted) -> str:
        """Raises InvalidRequest when the server refuses the text, Unavailable when it does not answer."""
        try:
            return (await self._ask(_prompt(wanted, self.max_tokens))).text
        except InvalidRequest as error:
            raise InvalidRequest(
                "fragment_id", f"{wanted.fragment_id} ({wanted.num_tokens:,} tokens) {error.message}", _SMALLER
            ) from error

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        """Raises what `summarize` does. Tokens that the server does not report are None."""
        try:
            return await self._ask(_conversation_prompt(text, instructions, self.max_tokens))
        except InvalidRequest as error:
            fields = f"a text to summarize of {num_tokens:,} tokens {error.message}"
            raise InvalidRequest("budget", fields, _SMALLER_BUDGET) from error

    def live_refusal(self, model: str) -> str:
        """Another server has nothing of the conversation in its cache."""
        return "summaries are written by another server"

    def live_instruction(self, instructions: str = "") -> str:
        """The server's own words around what the summary is to keep."""
        return _appended_prompt(instructions, self.max_tokens)

    async def summarize_live(self, live: LivePrompt, shown: Sequence[Message], instructions: str = "") -> Summary:
        """Raises Unavailable, always."""
        raise Unavailable(self.live_refusal(live.model))

    async def _ask(self, prompt: str) -> Summary:
        self._model = self._model or await self._server.first_model()
        answer = await self._server.post("chat/completions", _body(prompt, self._model, self.max_tokens))
        try:
            text = str(answer["choices"][0]["message"]["content"] or "")
        except (LookupError, TypeError) as error:
            raise self._server.unusable("no message") from error
        return Summary(text, _reported(answer, "prompt_tokens"), _reported(answer, "completion_tokens"))


_SMALLER = "If it is too long, cut smaller fragments with fragment_context and summarize those, or fold it."
_SMALLER_BUDGET = "Give a smaller max_tokens, or another policy."


def _reported(answer: Mapping[str, Any], name: str) -> int | None:
    """A number of the answer's usage, where the server reports one."""
    usage = answer.get("usage")
    number = usage.get(name) if isinstance(usage, Mapping) else None
    return number if type(number) is int and number >= 0 else None


def _prompt(wanted: SummaryWanted, max_tokens: int) -> str:
    return _PROMPT.format(focus=wanted.focus, num_words=_num_words(max_tokens), text=wanted.text)


def _conversation_prompt(text: str, instructions: str, max_tokens: int) -> str:
    asked = instructions.strip() or _INSTRUCTIONS
    return _CONVERSATION_PROMPT.format(instructions=asked, num_words=_num_words(max_tokens), text=text)


def _appended_prompt(instructions: str, max_tokens: int) -> str:
    asked = instructions.strip() or _INSTRUCTIONS
    return _APPENDED_PROMPT.format(instructions=asked, num_words=_num_words(max_tokens))


def _num_words(max_tokens: int) -> int:
    return max(1, int(max_tokens * _WORDS_PER_TOKEN))


def _body(prompt: str, model: str, max_tokens: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": max_tokens}
    return {"model": model, **body} if model else body


def _too_long(wanted: SummaryWanted, num_readable: int) -> InvalidRequest:
    return InvalidRequest(
        "fragment_id",
        f"{wanted.fragment_id} has {wanted.num_tokens:,} tokens; the model that writes summaries reads at most "
        f"{max(0, num_readable):,}.",
        _SMALLER,
    )
