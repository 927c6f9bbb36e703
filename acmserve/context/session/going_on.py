"""A client that leaves its history to the session: it names an answer, and sends only what follows.

    state    system   user   [calls, results]   answer r1   user   answer r2
    client   system'                            r1, user'                            what came behind r1 is cut off
    then     system'  user   [calls, results]   answer r1   user'

The transcript is the history. What was edited stays edited, and a redacted text is in no second place. The name of an
answer stands in its message, where no template shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from acmserve.context.session.branches.branching import end_where_interrupted
from acmserve.context.session.carrying.carry_over import cut_out
from acmserve.context.session.cutting import cut_back
from acmserve.context.session.history import Adoption, adopt
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.message import Message
from acmserve.errors import NotFound
from acmserve.validation import echo

RESPONSE_ID = "response_id"
"""The field of an answer's message that names it. It is no part of the message's identity."""


class Behind(Enum):
    """A place where the id of an answer could stand, and that no client can send."""

    END = "everything"


END = Behind.END


def go_on(state: SessionState, response_id: str | Behind, messages: Sequence[Message]) -> Adoption:
    """Take in what a client sent behind an answer whose history it leaves to the session. Pure.

    A system message at the head takes the place of the session's own, or goes without one. What stands behind the
    answer is cut off. Raises `NotFound` where the session has no such answer, and what `adopt` raises.
    """
    kept = _up_to(state, response_id)
    head = [message for message in messages[:1] if message.get("role") == "system"]
    has_head = bool(kept) and kept[0].message.get("role") == "system" and kept[0].origin is Author.CLIENT
    if bool(head) is not has_head and kept:
        held = [entry.message for entry in kept[has_head:] if entry.origin is not Author.INTERNAL]
        return adopt(state, [*head, *held, *messages[len(head) :]])
    if head and kept and not _begins_with(kept[0].message, head[0]):
        kept[0] = _entries(state, head)[0]
    left = cut_back(state, kept)
    continued = replace(left, entries=(*left.entries, *_entries(state, messages[len(head) if kept else 0 :])))
    continued = cut_out(continued, [*range(len(head)), *range(len(left.entries), len(continued.entries))])
    if continued.branches:
        continued = end_where_interrupted(continued)
    num_known = sum(entry.origin is not Author.INTERNAL for entry in left.entries)
    return Adoption(continued, num_known, num_of_parent=num_known)


def _entries(state: SessionState, messages: Sequence[Message]) -> tuple[TranscriptEntry, ...]:
    """The client's messages as entries of this session. Raises what `adopt` raises."""
    return adopt(SessionState(digest_key=state.digest_key), messages).state.entries


def _up_to(state: SessionState, response_id: str | Behind) -> list[TranscriptEntry]:
    """The entries up to an answer, with what belongs to its turn."""
    if isinstance(response_id, Behind):
        return list(state.entries)
    for index, entry in enumerate(state.entries):
        if entry.origin is Author.ANSWER and entry.message.get(RESPONSE_ID) == response_id:
            end = index + 1
            while end < len(state.entries) and state.entries[end].origin is Author.INTERNAL:
                end += 1
            return list(state.entries[:end])
    raise NotFound(
        "previous_response_id",
        f"{echo(response_id)} is no answer that this session holds.",
        "Send the whole history instead, without `previous_response_id`.",
    )


def _begins_with(message: Message, head: Message) -> bool:
    """Whether a system message is this one, or this one with instructions of the conversation behind it."""
    own, given = message.get("content"), head.get("content")
    if isinstance(own, str) and isinstance(given, str):
        return own == given or own.startswith(f"{given}\n\n")
    return bool(own == given)
