"""Writes the summary that `compact_20260112` asks for, when the prompt has outgrown the trigger.

The summarizer reads the whole conversation as the model would see it, an earlier summary included. It is asked only
where that can help. What stays word for word beside the summary may be over the trigger itself (a huge question, huge
tools). Then every later request would be summarized again, for nothing.

It is asked behind the request's own messages (`live_summary.py`) where the served model writes summaries. Where it
writes none there, it reads them as one text.

Where no summary comes of it the conversation goes on as it is. The block of the answer has no content then, as the
vendor does, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from acmserve.context.eviction.clearing_edits import Compact
from acmserve.context.eviction.compact import Summary
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.plain_text import write_out
from acmserve.context.transcript.token_counts import Count
from acmserve.errors import AcmError, InvalidRequest
from acmserve.server.budget.conversation_summary import WROTE_NOTHING, ConversationSummarizer, LivePrompt
from acmserve.server.messages.compaction_answer import Compacted
from acmserve.server.messages.live_summary import ask_behind
from acmserve.server.vllm.handlers import with_cancellation

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class Outgrown:
    """A prompt over its trigger: `shown` is the chat in it, `num_kept` its tokens if the summary were empty.

    `live` makes the next request of its session. Without one, `request` is vLLM's, and `blocks` are its messages.
    `check_current` raises `SessionLeft` where something of it was redacted meanwhile.
    """

    edit: Compact
    shown: Sequence[Message]
    num_kept: int
    live: LivePrompt | None = None
    request: Any = None
    blocks: Sequence[Message] = ()
    check_current: Callable[[], None] = lambda: None


class PromptCompactor:
    """One per API server process."""

    def __init__(self, summarizer: ConversationSummarizer, count: Count) -> None:
        self._summarizer = summarizer
        self._count = count

    async def compact(self, outgrown: Outgrown, raw_request: Request) -> Compacted | None:
        """Summarize. None when the client has gone meanwhile. Raises `SessionLeft` as `check_current` does."""
        done: Compacted | None = await with_cancellation(self._compact)(outgrown, raw_request)
        if done is not None and done.summary is not None:
            outgrown.check_current()
        return done

    async def _compact(self, outgrown: Outgrown, raw_request: Request) -> Compacted:
        edit = outgrown.edit
        if outgrown.num_kept >= edit.trigger_tokens:
            return _failed(f"{outgrown.num_kept:,} tokens would stay of it, the trigger is {edit.trigger_tokens:,}")
        behind = await self._ask_behind(outgrown, raw_request)
        if behind is not None:
            receipt = behind.receipt or {}
            num_cached = receipt.get("kept_tokens", 0) + receipt.get("moved_tokens", 0)
            num_read = max(0, (behind.input_tokens or 0) - num_cached)
            return Compacted(behind.text.strip(), num_read, behind.output_tokens or 0, num_cached)
        outgrown.check_current()
        text = write_out(outgrown.shown)
        num_tokens = self._count(text)
        try:
            num_asked = num_tokens + self._count(edit.instructions)
            summary = await self._summarizer.summarize_conversation(text, num_asked, edit.instructions)
        except AcmError as error:
            return _failed(error.message if isinstance(error, InvalidRequest) else str(error))
        written = summary.text.strip()
        if not written:
            return _failed("the model wrote nothing")
        num_read = num_tokens if summary.input_tokens is None else summary.input_tokens
        num_written = self._count(written) if summary.output_tokens is None else summary.output_tokens
        return Compacted(written, num_read, num_written)

    async def _ask_behind(self, outgrown: Outgrown, raw_request: Request) -> Summary | None:
        """The summary that was asked for behind the messages. None where there is none: then the log says why."""
        live, request = outgrown.live, outgrown.request
        handler = getattr(raw_request.app.state, "anthropic_serving_messages", None)
        model = request.model if live is None and request is not None else "" if live is None else live.model
        if not model or self._summarizer.live_refusal(model):
            return None
        instructions = outgrown.edit.instructions
        try:
            if live is not None:
                summary = await self._summarizer.summarize_live(live, outgrown.shown, instructions)
            else:
                text = self._summarizer.live_instruction(instructions)
                summary = await ask_behind(handler, request, outgrown.blocks, text, self._summarizer.max_tokens)
        except AcmError as error:
            logger.warning("acmserve: a summary is asked for with all of its text, because %s", error)
            return None
        if not summary.text.strip():
            logger.warning("acmserve: a summary is asked for with all of its text, because %s", WROTE_NOTHING)
            return None
        return summary


def _failed(reason: str) -> Compacted:
    logger.warning("acmserve: a conversation was not compacted: %s", reason)
    return Compacted(None, reason=reason)
