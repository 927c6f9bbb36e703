"""A client that leaves its history to the session: it names an answer, and sends only what follows.

    state    system   user   [calls, results]   answer r1   user   answer r2
    client   system'                            r1, user'                            what came behind r1 is cut off
    then     system'  user   [calls, results]   answer r1   user'

The transcript is the history. What was edited stays edited, and a redacted text is in no second place. Other
instructions than the session's are carried over like any changed message (`adopt`). Every edit that goes is told. The
name of an answer stands in its message, where no template shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from acmserve.context.session.carrying.carry_over import cut_out
from acmserve.context.session.carrying.late_results import late_results, left_out
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.session.cutting import cut_back
from acmserve.context.session.history import Adoption, adopt, interrupted, judged, results_with_calls
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.observations import AUTO, ObservationRule
from acmserve.errors import NotFound
from acmserve.validation import echo

RESPONSE_ID = "response_id"
"""The field of an answer's message that names it. It is no part of the message's identity."""


class Behind(Enum):
    """A place where the id of an answer could stand, and that no client can send."""

    END = "everything"


END = Behind.END


def go_on(
    state: SessionState, response_id: str | Behind, messages: Sequence[Message], rule: ObservationRule = AUTO
) -> Adoption:
    """Take in what a client sent behind an answer whose history it leaves to the session. Pure.

    A system message at the head takes the place of the session's own, or goes without one. What stands behind the
    answer is cut off. `rule` finds observations as in `adopt`. Raises `NotFound` where the session has no such answer,
    and what `adopt` raises.
    """
    left, dropped = _cut_behind(state, _up_to(state, response_id))
    known = [entry for entry in left.entries if entry.origin is not Author.INTERNAL]
    held = [entry.message for entry in known]
    own = [entry.message for entry in known[:1] if _is_instructions(entry.message, entry.origin)]
    head = [message for message in messages[:1] if _is_instructions(message, Author.CLIENT)]
    if len(own) != len(head) or not all(map(_begins_with, own, head)):
        adoption = adopt(left, [*head, *held[len(own) :], *messages[len(head) :]], rule)
        return replace(adoption, dropped=(*dropped, *adoption.dropped), num_of_parent=len(held))
    entries = (*left.entries, *_entries(state, messages[len(head) :]))
    new = range(len(left.entries), len(entries))
    continued = cut_out(replace(left, entries=entries), new)
    found = judged(continued.entries, new, state.observation_rule or rule)
    continued, dropped = interrupted(left, replace(continued, entries=found), dropped)
    continued = results_with_calls(continued)
    dropped = (*dropped, *left_out(continued, late_results(continued, new)))
    return Adoption(continued, len(held), dropped, num_of_parent=len(held))


def _cut_behind(state: SessionState, kept: Sequence[TranscriptEntry]) -> tuple[SessionState, tuple[DroppedEdit, ...]]:
    """The state with its first entries alone, and what of its edits went. Nothing is told where all entries stay."""
    left = cut_back(state, kept)
    num_left = len(left.entries)
    if num_left == len(state.entries):
        return left, ()
    held = [entry.message for entry in state.entries[:num_left] if entry.origin is not Author.INTERNAL]
    return left, adopt(state, held).dropped


def _entries(state: SessionState, messages: Sequence[Message]) -> tuple[TranscriptEntry, ...]:
    """The client's messages as entries of this session, none of them judged. Raises what `adopt` raises."""
    return adopt(SessionState(digest_key=state.digest_key), messages, ObservationRule("off")).state.entries


def _is_instructions(message: Message, author: Author) -> bool:
    return message.get("role") == "system" and author is Author.CLIENT


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
