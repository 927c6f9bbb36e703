"""What of a session was redacted, cut out of what maps keep of it: queries that wait, and copies in its prompts.

    query that waits   its messages as the session has them now; what else quotes the text is cut out
    copy of a map      "the harbour opens with [redacted]"

Items of a map are shared by sessions, and stay as they are. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acmserve.context.alignment.redacted_text import RedactedIndex
from acmserve.context.session.carrying.redactions import cut_redacted, cut_text
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message


@dataclass(frozen=True, slots=True)
class RedactedNow:
    """What a redaction did: messages before and after it, and what finds the text elsewhere."""

    changed: Sequence[tuple[Message, Message]]
    index: RedactedIndex

    def cut_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The messages without it, each the very object where there is none of it."""
        return [cut_redacted(self._as_it_is(message), self.index).message for message in messages]

    def cut_text(self, text: str) -> str:
        """The text without it, the very object where there is none of it."""
        return cut_text(text, self.index)

    def _as_it_is(self, message: Message) -> Message:
        return next((new for old, new in self.changed if old == message), message)


def redacted_now(before: SessionState, after: SessionState) -> RedactedNow:
    """What was redacted between two states of a session, whose entries are the same ones."""
    entries = zip(before.entries, after.entries, strict=False)
    changed = [(old.message, new.message) for old, new in entries if old.message is not new.message]
    return RedactedNow(changed, RedactedIndex(after.redacted, after.digest_key))


def sources_of(state: SessionState) -> frozenset[str]:
    """The sessions whose text a session began with: that which it is a branch or a side thread of."""
    parent = () if state.parent is None else (state.parent.session_id,)
    family = () if state.thread is None else (state.thread.family,)
    return frozenset((*parent, *family))
