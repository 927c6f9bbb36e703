"""What of a session was redacted, cut out of what maps keep of it: queries that wait, and copies in its prompts.

    query that waits   its messages as the session has them now. What else quotes the text is cut out.
                       A message that was redacted is found by the text of its copy, not compared with each
    copy of a map      "the harbour opens with [redacted]"

Items of a map are shared by sessions, and stay as they are. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from acmserve.context.alignment.core_text import CoreText
from acmserve.context.alignment.redacted_index import RedactedIndex
from acmserve.context.maps.trajectory import KeptMessage, KeptQuery, keep_message
from acmserve.context.session.carrying.redactions import cut_redacted, cut_text
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.call_arguments import argument_texts, unescaped
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.parts import call_arguments, tool_calls

# Messages that are looked through as one text. Most have nothing of it, and small ones cost as much as large ones.
_NUM_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class RedactedNow:
    """What a redaction did, and what finds the text elsewhere.

    `changed` has the copies of messages from behind it, by the texts of those from before it.
    """

    changed: Mapping[str, KeptMessage]
    index: RedactedIndex

    def cut_query(self, query: KeptQuery) -> KeptQuery:
        """The query without it, the very object where there is none of it."""
        now = query.messages
        if self.changed:
            now = tuple(self.changed.get(_spelled(kept), kept) for kept in now)
        batches = [now[first : first + _NUM_AT_ONCE] for first in range(0, len(now), _NUM_AT_ONCE)]
        cut = tuple(kept for batch in batches for kept in self._cut(batch))
        is_same = all(new is old for new, old in zip(cut, query.messages, strict=True))
        return query if is_same else replace(query, messages=cut)

    def cut_text(self, text: str) -> str:
        """The text without it, the very object where there is none of it."""
        return cut_text(text, self.index)

    def _cut(self, messages: Sequence[KeptMessage]) -> Sequence[KeptMessage]:
        """The messages without it. They are looked through as one text, and in halves where it is there."""
        said = [(None, text) for kept in messages for text in _texts(kept.message)]
        if not self.index.find(CoreText({}, said)):
            return messages
        if len(messages) == 1:
            cut = cut_redacted(messages[0].message, self.index).message
            return messages if cut is messages[0].message else [replace(messages[0], message=cut)]
        half = len(messages) // 2
        return [*self._cut(messages[:half]), *self._cut(messages[half:])]


def redacted_now(before: SessionState, after: SessionState) -> RedactedNow:
    """What was redacted between two states of a session, whose entries are the same ones."""
    changed: dict[str, KeptMessage] = {}
    for old, new in zip(before.entries, after.entries, strict=False):
        if old.message is not new.message:
            changed.setdefault(_spelled(keep_message(old.message)), keep_message(new.message))
    return RedactedNow(changed, RedactedIndex(after.redacted, after.digest_key))


def _spelled(kept: KeptMessage) -> str:
    return f"{kept.num_left} {json.dumps(kept.message)}"


def sources_of(state: SessionState) -> frozenset[str]:
    """The sessions whose text a session began with: that which it is a branch or a side thread of."""
    parent = () if state.parent is None else (state.parent.session_id,)
    family = () if state.thread is None else (state.thread.family,)
    return frozenset((*parent, *family))


def _texts(message: Message) -> Iterator[str]:
    """All texts of a message in which a redaction looks."""
    yield from (text for _, text in (*texts(message), *argument_texts(message)))
    yield from (unescaped(str(call_arguments(call))) for call in tool_calls(message))
