"""Writes the summary that `compact_20260112` asks for, when the prompt has outgrown the trigger.

The summarizer reads the whole conversation as the model would see it, an earlier summary included. It is asked only
where that can help. What stays word for word beside the summary may be over the trigger itself (a huge question, huge
tools). Then every later request would be summarized again, for nothing.

Where no summary comes of it the conversation goes on as it is. The block of the answer has no content then, as the
vendor does, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from acmserve.context.eviction.clearing_edits import Compact
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.plain_text import write_out
from acmserve.context.transcript.token_counts import Count
from acmserve.errors import AcmError, InvalidRequest
from acmserve.server.budget.enforcement import ConversationSummarizer
from acmserve.server.messages.compaction_answer import Compacted
from acmserve.server.vllm.handlers import with_cancellation

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class Outgrown:
    """A prompt over its trigger: `shown` is the chat in it, `num_kept` its tokens if the summary were empty."""

    edit: Compact
    shown: Sequence[Message]
    num_kept: int


class PromptCompactor:
    """One per API server process."""

    def __init__(self, summarizer: ConversationSummarizer, count: Count) -> None:
        self._summarizer = summarizer
        self._count = count

    async def compact(self, outgrown: Outgrown, raw_request: Request) -> Compacted | None:
        """Summarize. None when the client has gone meanwhile."""
        done: Compacted | None = await with_cancellation(self._compact)(outgrown, raw_request)
        return done

    async def _compact(self, outgrown: Outgrown, raw_request: Request) -> Compacted:
        edit = outgrown.edit
        if outgrown.num_kept >= edit.trigger_tokens:
            return _failed(f"{outgrown.num_kept:,} tokens would stay of it, the trigger is {edit.trigger_tokens:,}")
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


def _failed(reason: str) -> Compacted:
    logger.warning("acmserve: a conversation was not compacted: %s", reason)
    return Compacted(None, reason=reason)
