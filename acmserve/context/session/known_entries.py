"""Which entries of a transcript are those that were read before, and which of these are shown in other words now."""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.session.state import TranscriptEntry
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import Role, role_of


def compare_entries(
    known: tuple[Sequence[TranscriptEntry], Sequence[Message]], now: tuple[Sequence[TranscriptEntry], Sequence[Message]]
) -> tuple[int, list[int]]:
    """How many of the known entries are still there, from the first on, and which of these are shown in other words.

    Both are the entries of a transcript and what is shown of each.
    """
    (old_entries, old_shown), (entries, shown) = known, now
    num_old = len(old_entries)
    # Almost always nothing has changed, and a list is compared many times faster than by its items one by one.
    is_as_known = len(entries) >= num_old and shown[:num_old] == old_shown
    if is_as_known and all(map(_answer_alike, old_entries, entries)):
        return num_old, []
    changed: list[int] = []
    for index, old in enumerate(old_entries):
        if index == len(entries):
            return index, changed
        is_alike = _answer_alike(old, entries[index])
        if is_alike and (shown[index] is old_shown[index] or shown[index] == old_shown[index]):
            continue
        if not is_alike or not _is_same(old, entries[index]):
            return index, changed
        changed.append(index)
    return num_old, changed


def _answer_alike(old: TranscriptEntry, new: TranscriptEntry) -> bool:
    """Whether both or neither are observations: what answers a text is taken out with it, and a user's word is not."""
    return old.is_observation == new.is_observation


def _is_same(old: TranscriptEntry, new: TranscriptEntry) -> bool:
    """Whether two entries are the same message: by what the client holds, or the very message of an internal one.

    The result of a call stays that when its branch has returned and it reads otherwise. A message of the user or the
    system that reads otherwise takes the place of the old one: a clock, a reminder.
    """
    if old.digest or new.digest:
        return old.digest == new.digest or _is_version(old.message, new.message)
    if old.message == new.message or not old.message.get("tool_call_id"):
        return old.message == new.message
    return {**old.message, "content": None} == {**new.message, "content": None}


def _is_version(old: Message, new: Message) -> bool:
    is_protected = role_of(old) is Role.PROTECTED and role_of(new) is Role.PROTECTED
    return is_protected and old.get("role") == new.get("role")
