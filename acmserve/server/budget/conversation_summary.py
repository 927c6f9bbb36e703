"""Asks for a summary of a conversation: behind the conversation itself, or of its text written out.

    served    [tools, system, user, step, step, step ........ step, user]       in the cache
    appended  [tools, system, user, step, step, step][Summarize]                kept up to the instruction
    flattened [Summarize: "user: ... assistant: ... result of read: ..."]       all of it computed

Appended, the request goes to the engine under the session's own name, with the session's own tools. What it reads was
served before, so it is kept. It stops behind the last step that the summary covers. It is no part of the transcript, it
streams to nobody, and the model cannot call a tool in it.

The text is written out as before where another model summarizes, the prompt does not fit into the window, or the model
writes nothing. The answer says why. It does not know what is summarized.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from acmserve.context.eviction.compact import Summary
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.transcript.message import Message
from acmserve.errors import AcmError
from acmserve.server.exchange.exchange import Exchange

NUM_INSTRUCTION_TOKENS = 200
"""Room for our own words and the chat template beside a text to summarize."""
WROTE_NOTHING = "the model wrote nothing behind the conversation"

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class LivePrompt:
    """How the next request of a session is made: its `body` with other messages, and its `exchange` for one more.

    `model` is the one that serves it. The exchange leaves no trace in what is remembered of the session.
    """

    model: str
    body: Callable[[Sequence[Message]], dict[str, Any]]
    exchange: Callable[[Sequence[Message]], Exchange]


@dataclass(frozen=True, slots=True)
class SummaryAsked:
    """What is to be summarized: `shown` as the model sees it, about `num_shown` tokens, and `text` written out.

    `num_instructions` are the tokens of `instructions`, "" for the server's own.
    """

    shown: Sequence[Message]
    num_shown: int
    text: str
    num_text: int
    instructions: str = ""
    num_instructions: int = 0


class ConversationSummarizer(Protocol):
    """Writes summaries of conversations, of at most `max_tokens` tokens."""

    max_tokens: int

    def live_refusal(self, model: str) -> str:
        """Why it is not asked behind a conversation that `model` serves. "" where it is."""

    def live_instruction(self, instructions: str = "") -> str:
        """What is written behind the conversation."""

    async def summarize_live(self, live: LivePrompt, shown: Sequence[Message], instructions: str = "") -> Summary:
        """Raises AcmError where the model gives no answer."""

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        """Raises InvalidRequest where the text is too long, AcmError where the model cannot be reached.

        `num_tokens` counts the text and the instructions.
        """


async def ask_for_summary(
    summarizer: ConversationSummarizer, asked: SummaryAsked, live: LivePrompt | None, window: int
) -> Summary:
    """The summary, in the cheapest form that there is. Raises what `summarize_conversation` does."""
    reason = _refusal(summarizer, asked, live, window)
    if not reason and live is not None:
        try:
            summary = await summarizer.summarize_live(live, asked.shown, asked.instructions)
            if summary.text.strip():
                return summary
            reason = WROTE_NOTHING
        except AcmError as error:
            reason = str(error)
        logger.warning("acmserve: a summary is asked for with all of its text, because %s", reason)
    num_tokens = asked.num_text + asked.num_instructions
    summary = await summarizer.summarize_conversation(asked.text, num_tokens, asked.instructions)
    return replace(summary, flattened_because=reason)


def _refusal(summarizer: ConversationSummarizer, asked: SummaryAsked, live: LivePrompt | None, window: int) -> str:
    """Why the summary cannot be asked for behind the conversation. "" where it can."""
    if live is None:
        return "nothing is known of the requests of this conversation"
    if refusal := summarizer.live_refusal(live.model):
        return refusal
    num_prompt = asked.num_shown + asked.num_instructions + NUM_INSTRUCTION_TOKENS + summarizer.max_tokens
    if num_prompt > window:
        return f"the conversation and its summary have about {num_prompt:,} tokens, the window is {window:,}"
    return ""


def with_instruction(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with an instruction at the end: in the last one where that is the user's, else behind it.

    Many templates accept no two messages of the user in a row.
    """
    if not messages or messages[-1].get("role") != "user":
        return [*messages, {"role": "user", "content": text}]
    last: Mapping[str, Any] = messages[-1]
    content = last.get("content")
    if isinstance(content, list):
        return [*messages[:-1], {**last, "content": [*content, {"type": "text", "text": f"\n\n{text}"}]}]
    return [*messages[:-1], {**last, "content": f"{content or ''}\n\n{text}"}]


def unusable(summary: Summary, plan: EvictionPlan) -> str:
    """Why a summary cannot be used. "" where it can."""
    if not summary.text.strip():
        return "the model wrote an empty summary"
    if plan.num_after >= plan.num_before:
        return "the summary that was written is no shorter than what it would replace"
    return ""


def summary_json(summary: Summary | None) -> dict[str, Any] | None:
    """What a summary cost, as answers say it. None where no model was asked."""
    if summary is None:
        return None
    fields: dict[str, Any] = {"input_tokens": summary.input_tokens, "output_tokens": summary.output_tokens}
    if summary.receipt is not None:
        counts = ("kept_tokens", "moved_tokens", "computed_tokens")
        return fields | {"form": "appended", **{name: summary.receipt[name] for name in counts}}
    return fields | {"form": "flattened", "reason": summary.flattened_because or None}
