"""Carries what is taken out of a conversation over to entries that have moved or changed.

    old   gone [2, 5), entry 7: call 0 is gone, a summary at 5
    new   gone [3, 4), [6, 8), entry 9: call 0 ..          a message that came in between is shown

What is new is never left out. What is taken out of a changed message stays so, unless it names calls that are others
now, or a user wrote it. The marker for what users said goes to the first message of a user that is left out. A summary
speaks for all that was taken out before it. Where its message is gone it goes to the last one before that is left out.
Where there is none, everything is shown again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from acmserve.context.alignment.likeness import Sketch, have_same_calls
from acmserve.context.alignment.normal_form import normal_form
from acmserve.context.session.branches.branch import Branch
from acmserve.context.session.carrying.fragments import Landings
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, NOTHING, USERS_LEFT_OUT, MessageOmissions, Omissions
from acmserve.context.transcript.parts import Role, role_of, tool_calls


def carry_omissions(
    omissions: Omissions,
    landings: Landings,
    old: Sequence[Message],
    new: Sequence[Message],
    shown: Collection[int],
) -> Omissions:
    """The omissions in the entries `new`. The old entries `shown` are not left out any more."""
    if not omissions:
        return omissions
    hidden: list[int] = []
    entries: dict[int, MessageOmissions] = {}
    for entry, landing in landings.items():
        if entry in shown:
            continue
        if omissions.in_gone(entry):
            hidden.append(landing.entry)
        kept = omissions.entries.get(entry)
        if kept is not None and _holds(kept, old[entry], new[landing.entry]):
            entries[landing.entry] = kept
    carried = Omissions(_ranges(hidden), _with_marker(entries, new))
    summarized = omissions.summarized
    if summarized is None or carried.summarized is not None:
        return carried
    return _with_summary(carried, omissions.entries[summarized].summary, _behind(summarized, landings), new)


def _holds(kept: MessageOmissions, old: Message, new: Message) -> bool:
    """Whether what was taken out of a message is taken out of what it is now."""
    if role_of(old) is Role.PROTECTED:
        return old is new or normal_form(old) == normal_form(new)
    return not _names_calls(kept) or _have_same_calls(old, new)


def _with_marker(entries: Mapping[int, MessageOmissions], new: Sequence[Message]) -> dict[int, MessageOmissions]:
    """The entries with the marker for what users said at the first of theirs, and at no other."""
    users = sorted(entry for entry in entries if role_of(new[entry]) is Role.PROTECTED)
    marks = {entry: (USERS_LEFT_OUT,) if entry == users[0] else () for entry in users}
    return {entry: replace(kept, notes=marks[entry]) if entry in marks else kept for entry, kept in entries.items()}


def _names_calls(kept: MessageOmissions) -> bool:
    return bool(kept.calls or kept.cleared or kept.inputs)


def _have_same_calls(old: Message, new: Message) -> bool:
    return old is new or have_same_calls(Sketch(old), Sketch(new))


def _ranges(entries: Collection[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for entry in sorted(entries):
        if ranges and ranges[-1][1] == entry:
            ranges[-1] = (ranges[-1][0], entry + 1)
        else:
            ranges.append((entry, entry + 1))
    return tuple(ranges)


def _behind(entry: int, landings: Landings) -> int:
    """The entry behind those that stood before an old one."""
    return max((landing.entry + 1 for old, landing in landings.items() if old < entry), default=0)


def _with_summary(carried: Omissions, summary: str, end: int, new: Sequence[Message]) -> Omissions:
    """The omissions with the summary at the last message before `end` that has something taken out."""
    for entry in range(end - 1, -1, -1):
        if role_of(new[entry]) is not Role.ASSISTANT:
            continue
        kept = carried.entries.get(entry)
        if kept is None and carried.in_gone(entry):
            kept = MessageOmissions(True, True, frozenset(range(len(tool_calls(new[entry])))))
        if kept is not None:
            return Omissions(carried.gone, {**carried.entries, entry: replace(kept, summary=summary)})
    return EMPTY


def dropped_omissions(
    before: Omissions,
    after: Omissions,
    landings: Landings,
    old: Sequence[Message],
    branches: Sequence[Branch],
) -> list[DroppedEdit]:
    """One record for all messages that are left and of which less is left out now. Branches have their own records."""
    if not before:
        return []
    shown = [
        entry
        for entry, landing in landings.items()
        if _hides_less(before, after, entry, landing.entry)
        and (role_of(old[entry]) is not Role.PROTECTED or entry in before.entries)
        and not any(branch.holds(entry) for branch in branches)
    ]
    if not shown:
        return []
    words = "1 message is" if len(shown) == 1 else f"{len(shown)} messages are"
    return [
        DroppedEdit("omission", "", f"{words} shown again: the history ends there, or what spoke for them is gone.")
    ]


def _hides_less(before: Omissions, after: Omissions, old: int, new: int) -> bool:
    was, now = before.entries.get(old), after.entries.get(new)
    if was is None:
        return before.in_gone(old) and not after.in_gone(new)
    if now is None:
        return not after.in_gone(new)
    return was != now and _without_lines(was) not in (_without_lines(now), NOTHING)


def _without_lines(kept: MessageOmissions) -> MessageOmissions:
    return replace(kept, summary="", notes=())
