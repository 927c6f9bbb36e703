"""What was taken out of a conversation, as data, and the conversation without it.

    messages   user   assistant(text, grep, edit)   result   result   assistant(end A)        user
    omissions         entry 1: call 0 is gone       gone               entry 4: all gone but a note
    rendered   user   assistant(text, edit)                  result   assistant("[explored A: ...]")  user

`Omissions` name parts of messages by entry number and hold no text but the notes. So they are small, and taking them
away shows everything again. Rendering is a pure function, deterministic to the byte, and safe whatever the data says:

- A result shares the fate of its call, so neither is ever left alone. Results are found by pairing, not by the data.
- An observation shares the fate of the text that it answers. Which messages are observations the caller says.
- A message of the user is left out only where its own entry says so, never by a range. A marker may take its place.
- A message of the assistant that would say nothing and call nothing is left out. `tool_calls` is never an empty list.
- Messages of the system, and all of which nothing is taken, are the very objects that came in.

Decision: of an exploration the message that ended it stays, as a short text of the assistant in its place. Where the
model spoke twice in a row after that, the template decides how it looks. No role is invented to stand between. A
summary stands so, too, in the place of the last message that it covers. It is the only text that says what went before
it. Where it goes (a rewind, a redaction), everything in front of it is shown again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import TEXT, Use, pair_results
from acmserve.context.transcript.parts import Role, has_text, role_of, tool_calls, without_reasoning
from acmserve.errors import IntegrityError

PLACEHOLDER = "[tool result cleared]"
CLEARED_ARGUMENTS = "{}"
USERS_LEFT_OUT = "[some messages of the user were left out from here on]"
"""Stands in the place of the first message of a user that an eviction took, and speaks for all of them."""


@dataclass(frozen=True, slots=True)
class MessageOmissions:
    """What is taken out of one message of the assistant, or of a user. Numbers are indices into its `tool_calls`.

    `calls` are gone with their results. The results of `cleared` are a placeholder (`TEXT`: that of the text), the
    arguments of `inputs` are empty. `notes` are lines that stand behind what is left of the text. `summary` stands in
    front of them: it speaks for all that was taken out up to this message, and no two messages have one. Whoever wrote
    it had read entries before `summary_end` alone. 0 where that is not known, as in older files.
    """

    reasoning: bool = False
    text: bool = False
    calls: frozenset[int] = frozenset()
    cleared: frozenset[int] = frozenset()
    inputs: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    summary: str = ""
    summary_end: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """What is written in the place of what is gone."""
        return (self.summary, *self.notes) if self.summary else self.notes

    def has_lost(self, number: int) -> bool:
        """Whether a call is gone, or with `TEXT` the text."""
        return self.text if number == TEXT else number in self.calls


NOTHING = MessageOmissions()


@dataclass(frozen=True, slots=True)
class Omissions:
    """`gone` are ranges `[start, end)` of entries, ascending and apart, whose messages are left out altogether.

    An entry in `entries` is rendered as that says, inside such a range too. A user's goes only so. The system's stay.
    """

    gone: tuple[tuple[int, int], ...] = ()
    entries: Mapping[int, MessageOmissions] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.gone or self.entries)

    def in_gone(self, entry: int) -> bool:
        """Whether a range of `gone` holds the entry."""
        at = bisect_right(self.gone, (entry, entry)) if self.gone else 0
        return (at > 0 and self.gone[at - 1][1] > entry) or (at < len(self.gone) and self.gone[at][0] == entry)

    def is_gone(self, entry: int) -> bool:
        """Whether nothing of the message of the entry is left (unless it is a user's or the system's)."""
        return entry not in self.entries and self.in_gone(entry)

    def has_lost(self, use: Use) -> bool:
        """Whether a tool call is gone."""
        kept = self.entries.get(use.entry)
        return kept.has_lost(use.number) if kept is not None else self.in_gone(use.entry)

    @property
    def summarized(self) -> int | None:
        """The entry that has the summary. None where there is none."""
        return next((entry for entry, kept in self.entries.items() if kept.summary), None)

    def may_tell_of(self, entry: int) -> bool:
        """Whether the summary may have been written from an entry: results and users' messages behind it, too."""
        summarized = self.summarized
        end = 0 if summarized is None else self.entries[summarized].summary_end or entry + 1
        return entry < end

    def first(self, num_entries: int) -> Omissions:
        """What is taken out of the first entries. Nothing where the summary that speaks for it stands behind them."""
        summarized = self.summarized
        if summarized is not None and summarized >= num_entries:
            return EMPTY
        gone = tuple((start, min(end, num_entries)) for start, end in self.gone if start < num_entries)
        return Omissions(gone, {entry: kept for entry, kept in self.entries.items() if entry < num_entries})

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when ranges are empty, touch, or are out of order."""
        for start, end in self.gone:
            if not 0 <= start < end:
                raise IntegrityError(f"omissions: range [{start}, {end})")
        for (_, end), (start, _) in pairwise(self.gone):
            if end >= start:
                raise IntegrityError(f"omissions: a range ends at {end}, the next starts at {start}")
        for entry, kept in self.entries.items():
            least = min(kept.calls | kept.inputs | (kept.cleared - {TEXT}), default=0)
            if entry < 0 or kept == NOTHING or least < 0 or kept.summary_end < 0:
                raise IntegrityError(f"omissions: entry {entry} has {kept}")
        num_summaries = sum(bool(kept.summary) for kept in self.entries.values())
        if num_summaries > 1:
            raise IntegrityError(f"omissions: {num_summaries} summaries")


EMPTY = Omissions()


def with_ranges(omissions: Omissions, ranges: Sequence[tuple[int, int]]) -> Omissions:
    """The omissions with the entries of ranges `[start, end)` gone altogether. The very object if they are gone."""
    known = sorted(omissions.entries)
    inside = {at for start, end in ranges for at in known[bisect_left(known, start) : bisect_left(known, end)]}
    if not inside and all(_is_range_gone(omissions, start, end) for start, end in ranges):
        return omissions
    merged: list[tuple[int, int]] = []
    for start, end in sorted([*omissions.gone, *ranges]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return Omissions(tuple(merged), {entry: kept for entry, kept in omissions.entries.items() if entry not in inside})


def _is_range_gone(omissions: Omissions, start: int, end: int) -> bool:
    at = bisect_right(omissions.gone, start, key=lambda gone: gone[0])
    return at > 0 and end <= omissions.gone[at - 1][1]


def omissions_before_divergence(omissions: Omissions, kept: Sequence[Message]) -> Omissions:
    """What stays taken out when only the messages `kept` of the old history stay.

    The results of the last step may have changed with what follows, so nothing is taken from that step either.
    """
    limit = len(kept)
    while limit and role_of(kept[limit - 1]) is Role.RESULT:
        limit -= 1
    if limit and role_of(kept[limit - 1]) is Role.ASSISTANT:
        limit -= 1
    return omissions.first(limit)


def render_without(
    messages: Sequence[Message], omissions: Omissions, observations: Collection[int] = ()
) -> list[Message]:
    """The messages that are left. `messages` has one for each entry."""
    return [message for message in omit_from_messages(messages, omissions, observations) if message is not None]


def omit_from_messages(
    messages: Sequence[Message], omissions: Omissions, observations: Collection[int] = ()
) -> list[Message | None]:
    """What is left of each message, None where that is nothing. `observations` are entries of the user's."""
    if not omissions:
        return list(messages)
    rendered: list[Message | None] = []
    for entry, (message, (role, use)) in enumerate(zip(messages, pair_results(messages, observations), strict=True)):
        left: Message | None = message
        if role is Role.ASSISTANT:
            kept = omissions.entries.get(entry)
            left = (None if omissions.in_gone(entry) else message) if kept is None else omit_from_message(message, kept)
        elif role is Role.RESULT:
            left = _omit_from_result(entry, message, use, omissions)
        elif (kept := omissions.entries.get(entry)) is not None and message.get("role") == "user":
            left = _omit_from_user(message, kept)
        rendered.append(left)
    return rendered


def _omit_from_result(entry: int, message: Message, use: Use | None, omissions: Omissions) -> Message | None:
    """A result as its call wants it. One that answers no call stands for itself."""
    if use is None:
        return None if omissions.is_gone(entry) else message
    if omissions.has_lost(use):
        return None
    if use.number in omissions.entries.get(use.entry, NOTHING).cleared:
        return {**message, "content": PLACEHOLDER}
    return message


def _omit_from_user(message: Message, omissions: MessageOmissions) -> Message | None:
    """A message of the user, or the marker in its place. None where neither is left."""
    if not omissions.text:
        return message
    return {"role": "user", "content": "\n".join(omissions.notes)} if omissions.notes else None


def omit_from_message(message: Message, omissions: MessageOmissions) -> Message | None:
    """A message of the assistant without what is taken out of it. None when nothing is left to say."""
    if omissions == NOTHING:
        return message
    left: dict[str, Any] = dict(without_reasoning(message) if omissions.reasoning else message)
    if left.get("content") == []:
        left["content"] = ""
    if omissions.text:
        left = {name: value for name, value in left.items() if name not in {"refusal", "audio"}} | {"content": ""}
    calls = [
        _without_arguments(call) if index in omissions.inputs else call
        for index, call in enumerate(tool_calls(message))
        if index not in omissions.calls
    ]
    if calls:
        left["tool_calls"] = calls
    else:
        left.pop("tool_calls", None)
    if omissions.lines:
        left["content"] = _with_notes(left, omissions.lines)
    elif not calls and not has_text(left):
        return None
    return message if left == message else left


def _without_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments: object = {} if isinstance(call["function"].get("arguments"), Mapping) else CLEARED_ARGUMENTS
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _with_notes(message: Message, notes: Sequence[str]) -> object:
    content, lines = message.get("content"), "\n".join(notes)
    if isinstance(content, list):
        return [*content, {"type": "text", "text": lines}]
    return f"{content}\n{lines}" if isinstance(content, str) and content.strip() else lines
