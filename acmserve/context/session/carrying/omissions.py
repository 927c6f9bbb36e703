"""Carries what is taken out of a conversation over to entries that have moved or changed.

    old   gone [2, 5), entry 7: call 0 is gone, a summary at 5
    new   gone [3, 4), [6, 8), entry 9: call 0 ..          a message that came in between is shown

What is new is never left out, but a result shares the fate of its call. What is taken out of a changed message stays
so, unless it names calls that are others now, or a user wrote it. The marker for what users said goes to the first
message of a user that is left out. A summary speaks for all that was taken out before it. Where its message is gone it
goes to the last one before that is left out. What a closed branch holds has no place for it. Where there is none,
everything is shown again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from acmserve.context.alignment.likeness import Sketch, have_same_calls
from acmserve.context.alignment.normal_form import normal_form
from acmserve.context.session.branches.branch import Branch, branch_at
from acmserve.context.session.carrying.branches import CarriedBranches
from acmserve.context.session.carrying.fragments import Landings
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, NOTHING, USERS_LEFT_OUT, MessageOmissions, Omissions
from acmserve.context.transcript.outline import Use, pair_results
from acmserve.context.transcript.parts import Role, role_of, tool_calls

SHOWN_AGAIN = "the history ends there, a user has changed it, or what spoke for them is gone."


def carry_omissions(
    omissions: Omissions,
    landings: Landings,
    old: Sequence[Message],
    new: Sequence[Message],
    branches: CarriedBranches,
) -> Omissions:
    """The omissions in the entries `new`. The old entries that `branches` shows are not left out any more.

    Which results are left out says `with_results` afterwards.
    """
    if not omissions:
        return omissions
    behind = _Behind(landings)
    hidden: list[int] = []
    entries: dict[int, MessageOmissions] = {}
    for entry, landing in landings.items():
        if entry in branches.shown:
            continue
        kept = omissions.entries.get(entry)
        if kept is not None and not _holds(kept, old[entry], new[landing.entry]):
            continue
        if kept is not None:
            entries[landing.entry] = replace(kept, summary_end=behind.at(kept.summary_end))
        if omissions.in_gone(entry):
            hidden.append(landing.entry)
    carried = Omissions(_ranges(hidden), _with_marker(entries, new))
    summarized = omissions.summarized
    if summarized is None or carried.summarized is not None:
        return carried
    held = [branch for branch in branches.branches if branch.end is not None]
    free = [at for at in range(behind.at(summarized)) if branch_at(held, at) is None]
    spoken = omissions.entries[summarized]
    return _with_summary(carried, replace(spoken, summary_end=behind.at(spoken.summary_end)), free, new)


def hold_in_place(omissions: Omissions, old: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether all that is taken out of messages is taken out of those that stand in the same places now."""
    return all(_holds(kept, old[entry], new[entry]) for entry, kept in omissions.entries.items())


def with_results(
    omissions: Omissions, messages: Sequence[Message], observations: Collection[int], branches: Sequence[Branch]
) -> Omissions:
    """The omissions in which a result is gone exactly when its call is, as it is rendered. The very object if so.

    What a closed branch holds stays gone.
    """
    if not omissions:
        return omissions
    closed = [branch for branch in branches if branch.end is not None]
    lost, shown = set[int](), set[int]()
    for entry, (role, use) in enumerate(pair_results(messages, observations)):
        if role is not Role.RESULT or use is None or omissions.has_lost(use) == omissions.in_gone(entry):
            continue
        if omissions.has_lost(use):
            lost.add(entry)
        elif branch_at(closed, entry) is None:
            shown.add(entry)
    if not lost and not shown:
        return omissions
    gone = {entry for start, end in omissions.gone for entry in range(start, end)}
    return replace(omissions, gone=_ranges((gone | lost) - shown))


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


class _Behind:
    """Where the entries stand that stood before an old one."""

    def __init__(self, landings: Landings) -> None:
        self._old = sorted(landings)
        self._ends = list(accumulate((landings[old].entry + 1 for old in self._old), max))

    def at(self, entry: int) -> int:
        """The entry behind all that stood before this one."""
        num_before = bisect_left(self._old, entry)
        return self._ends[num_before - 1] if num_before else 0


def _with_summary(
    carried: Omissions, spoken: MessageOmissions, free: Sequence[int], new: Sequence[Message]
) -> Omissions:
    """The omissions with the summary of `spoken` at the last of the entries `free` that has something taken out."""
    for entry in reversed(free):
        if role_of(new[entry]) is not Role.ASSISTANT:
            continue
        kept = carried.entries.get(entry)
        if kept is None and carried.in_gone(entry):
            kept = MessageOmissions(True, True, frozenset(range(len(tool_calls(new[entry])))))
        if kept is not None:
            kept = replace(kept, summary=spoken.summary, summary_end=spoken.summary_end)
            return Omissions(carried.gone, {**carried.entries, entry: kept})
    return EMPTY


def dropped_omissions(
    before: Omissions,
    after: Omissions,
    landings: Landings,
    old: Sequence[Message],
    observations: Collection[int],
    branches: Sequence[Branch],
) -> list[DroppedEdit]:
    """One record for all messages that are left and of which less is left out now. Branches have their own records.

    `old` are the messages of before, `observations` those of them that are results of a text.
    """
    if not before:
        return []
    uncleared = _without_their_calls(before, landings, pair_results(old, observations))
    shown = [
        entry
        for entry, landing in landings.items()
        if (entry in uncleared or hides_less(before, after, entry, landing.entry))
        and may_leave_out(before, old[entry], entry, observations)
        and branch_at(branches, entry) is None
    ]
    return shown_again(len(shown), SHOWN_AGAIN)


def shown_again(num_messages: int, reason: str) -> list[DroppedEdit]:
    """One record for so many messages that were left out, and are not any more. None for no message."""
    if not num_messages:
        return []
    words = "1 message is" if num_messages == 1 else f"{num_messages} messages are"
    return [DroppedEdit("omission", "", f"{words} shown again: {reason}")]


def may_leave_out(omissions: Omissions, message: Message, entry: int, observations: Collection[int]) -> bool:
    """Whether omissions can leave out the message of an entry. A user's goes by its own entry alone, by no range."""
    return role_of(message) is not Role.PROTECTED or entry in omissions.entries or entry in observations


def _without_their_calls(
    before: Omissions, landings: Landings, pairs: Sequence[tuple[Role, Use | None]]
) -> frozenset[int]:
    """The results that were a placeholder, and whose calls, which said so, are no more."""
    return frozenset(
        entry
        for entry, (_, use) in enumerate(pairs)
        if use is not None
        and use.entry not in landings
        and not before.has_lost(use)
        and use.number in before.entries.get(use.entry, NOTHING).cleared
    )


def hides_less(before: Omissions, after: Omissions, old: int, new: int) -> bool:
    """Whether less of a message is left out now than before, but for lines that stand in its place."""
    was, now = before.entries.get(old), after.entries.get(new)
    if was is None:
        return before.in_gone(old) and not after.in_gone(new)
    if now is None:
        return not after.in_gone(new)
    return was != now and _without_lines(was) not in (_without_lines(now), NOTHING)


def _without_lines(kept: MessageOmissions) -> MessageOmissions:
    return replace(kept, summary="", summary_end=0, notes=())
